"""A tokenizer's chat template as a function of messages and tools: its compiled sources, and what else they are handed.

Knows nothing of samples, markers and tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentlightning.errors import TemplateError
from agentlightning.nouns import Json
from agentlightning.templates.jinja import Compiled, compile_template, names_in

_HANDED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
"""What a template is handed in any case, so that no client can."""


@dataclass(frozen=True, slots=True)
class Renderer:
    """``special_tokens`` are the tokenizer's own by name (`bos_token`), ``takes`` the names of what the template may be
    handed besides, and ``kwargs`` what it is handed of these. Satisfies `probe.Render`."""

    plain: Compiled
    with_tools: Compiled
    special_tokens: Mapping[str, str]
    takes: frozenset[str]
    kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @classmethod
    def of(cls, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> Renderer:
        """``sources`` has the template for each use, ``default`` and ``tool_use``. Raises TemplateError where one is
        none."""
        plain = _compiled(sources["default"])
        with_tools = plain if sources["tool_use"] == sources["default"] else _compiled(sources["tool_use"])
        takes = frozenset[str]().union(*map(names_in, sources.values())) - special_tokens.keys() - _HANDED
        return cls(plain, with_tools, special_tokens, takes)

    def handed(self, kwargs: Mapping[str, Json]) -> Renderer:
        """The same template, handed these."""
        return replace(self, kwargs=kwargs)

    def __call__(self, messages: Sequence[Json], tools: Sequence[Json] | None, generate: bool) -> str:
        """The conversation as text, up to where a reply begins where ``generate``. Raises TemplateError."""
        compiled = self.with_tools if tools else self.plain
        try:
            return compiled(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generate,
                **self.special_tokens,
                **self.kwargs,
            )
        except Exception as error:  # a template is a program of somebody else's: it may fail in any way
            raise TemplateError(
                f"the chat template refused the conversation: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error


def _compiled(source: str) -> Compiled:
    try:
        return compile_template(source)
    except Exception as error:  # whatever a source that is no template makes the compiler raise
        raise TemplateError(f"it is no Jinja template: {' '.join(str(error).split())}") from error
