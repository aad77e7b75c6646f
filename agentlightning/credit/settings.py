"""The settings of credit: `[algorithm.credit]` of algorithms that weight sampled tokens by rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from agentlightning.credit.schemes import SCHEMES
from agentlightning.credit.schemes.base import CALLS, ROLLOUT, Term
from agentlightning.settings.fields import Settings

if TYPE_CHECKING:
    SchemeName = str
else:
    SchemeName = Literal[tuple(SCHEMES)]


class CreditSettings(Settings):
    """What each call of a rollout is worth, and how many of its rows are trained."""

    scheme: SchemeName = "episode"
    """`episode`: the rollout's reward goes to each of its calls. `call`: a call's own reward, the sum of those that
    name it or a tool call of it. `mixed`: both, each compared with its like. `discounted`: what came from a call on,
    discounted over calls."""
    discount: float = Field(default=0.95, ge=0, le=1)
    """With `discounted`: what a reward is worth one call earlier."""
    episode_weight: float = 1.0
    """With `mixed`: the weight of the episode's advantage."""
    call_weight: float = 1.0
    """With `mixed`: the weight of the advantage of a call's own reward."""
    by_agent: bool = False
    """Compare an agent's calls with its own alone; a reward that names an agent is then that one's for the whole
    episode."""
    max_row_length: int | None = Field(default=None, ge=2)
    """A call whose prompt and sample are more tokens than this is masked as `row_length`. None: no limit."""
    max_rows: int | None = Field(default=None, ge=1)
    """At most this many rows of an attempt are trained, chosen by its rollout's seed; calls that lie on no other are
    masked as `row_limit`. A row is a path from a root of the trace to its last trained call. None: all."""

    @model_validator(mode="after")
    def _read_by_its_scheme(self) -> CreditSettings:
        for name, scheme in SCHEMES.items():
            for setting in scheme.settings:
                given, default = getattr(self, setting), type(self).model_fields[setting].default
                if given != default and setting not in SCHEMES[self.scheme].settings:
                    raise ValueError(f"{setting}={given:g} is read only by scheme='{name}', and it is {self.scheme!r}")
        return self

    @property
    def terms(self) -> Sequence[Term]:
        return SCHEMES[self.scheme].terms(self)

    @property
    def limits_rows(self) -> bool:
        return self.max_row_length is not None or self.max_rows is not None

    @property
    def reads_calls(self) -> bool:
        """Whether rewards of single calls change a weight."""
        return any(CALLS in term.reads for term in self.terms)

    @property
    def reads_rollout(self) -> bool:
        """Whether the whole rollout's reward, or an agent's, changes one."""
        return any(ROLLOUT in term.reads for term in self.terms)
