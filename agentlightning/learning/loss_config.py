"""LossConfig: the settings of the policy-gradient loss. An algorithm fills them in, the learner reads them. Imports no
torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentlightning.settings.fields import Settings

Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo"]


class LossConfig(Settings):
    clip_low: float = Field(0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(0.28, gt=0)
    """The ratio is clipped above at 1 + clip_high."""
    aggregation: Aggregation = "token_mean"
    """How token losses become one number. `token_mean`: over all trained tokens; `sequence_mean`: over units of each
    unit's mean; `dr_grpo`: each unit's sum over `fixed_length`."""
    fixed_length: int | None = Field(None, ge=1)
    """With `dr_grpo`: the length that each unit's sum is divided by."""

    @model_validator(mode="after")
    def _length_where_it_counts(self) -> LossConfig:
        if (self.aggregation == "dr_grpo") != (self.fixed_length is not None):
            raise ValueError(
                f"fixed_length={self.fixed_length} with aggregation={self.aggregation!r}: dr_grpo needs it and nothing "
                "else reads it"
            )
        return self
