"""Templates: messages to tokens and sampled tokens to messages. `base.Template` is the contract, `load_template` makes
one.

Nothing here imports torch, an engine or a wire, and nothing is stored: all that a template remembers was found when it
was loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentlightning.nouns import Json
from agentlightning.templates.base import (
    FormatChoice,
    Parsed,
    ParsedDelta,
    Rendering,
    SampledTurn,
    StreamParser,
    Template,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "FormatChoice",
    "Parsed",
    "ParsedDelta",
    "Rendering",
    "SampledTurn",
    "StreamParser",
    "Template",
    "describe",
    "load_template",
]


def load_template(
    tokenizer: PreTrainedTokenizerBase,
    *,
    tool_format: str | None = None,
    stop_token_ids: Sequence[int] = (),
    keep_reasoning: bool = False,
    reasoning_tags: tuple[str, str] | None = None,
) -> Template:
    """A Template over a Hugging Face fast tokenizer with a chat template, which is probed once, here.

    ``tool_format``: a name of `formats.FORMATS`; None takes what the template writes. ``stop_token_ids`` are added to
    the end-of-turn ids that the tokenizer, the template and the format name. ``keep_reasoning``: a recorded sample
    stays as it was sampled where the template would drop its reasoning (else that is a rewrite).
    ``reasoning_tags``: what encloses reasoning where neither the template nor the tokenizer shows it. Raises
    ConfigError for an unknown format or tags that cannot hold, ModelError for a tokenizer that cannot be used.
    """
    from agentlightning.templates.chat import ChatTemplate

    return ChatTemplate(
        tokenizer,
        tool_format=tool_format,
        stop_token_ids=stop_token_ids,
        keep_reasoning=keep_reasoning,
        reasoning_tags=reasoning_tags,
    )


def describe(template: Template) -> dict[str, Json]:
    """For people: the tool format, how it was chosen, and what the probe found. A template that was not probed says
    only its format and stops."""
    from agentlightning.templates.chat import ChatTemplate

    known: dict[str, Json] = {"tool_format": template.tool_format, "stop_token_ids": list(template.stop_token_ids)}
    if isinstance(template, ChatTemplate):
        known |= {
            "chosen": asdict(template.tool_rendering.choice),
            "native_tools": template.tool_rendering.native_list,
            "native_calls": template.tool_rendering.native_calls,
            "fallback": template.tool_rendering.fallback,
            "made_fit": list(template.fitted),
            "stop_tokens": [template.decode([token]) for token in template.stop_token_ids],
            "probe": asdict(template.probe),
        }
    return known
