"""How tools, calls and results are written in a conversation: where the chat template has places for them, and what
stands in for the places that it lacks. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agentlightning.errors import ConfigError
from agentlightning.templates.base import FormatChoice
from agentlightning.templates.formats import FORMATS, ToolFormat, choose
from agentlightning.templates.probe import Probe


@dataclass(frozen=True, slots=True)
class ToolRendering:
    """``choice`` says which format, whether that is sure, and why; ``opening`` is what a call begins with there.

    ``native_calls``: calls and results stand where the template has them; else they are text. ``native_list``: so does
    the list of tools. ``fallback`` is one line for people: why tools are rendered as text. "" where the template's own
    rendering is used.
    """

    choice: FormatChoice
    format: ToolFormat
    opening: str
    native_calls: bool
    native_list: bool
    fallback: str

    @classmethod
    def of(cls, wanted: str | None, probe: Probe, added_tokens: Collection[str], source: str) -> ToolRendering:
        """``wanted`` is the format that the user names, ``source`` the template's. Raises ConfigError for a format that
        the template cannot be used with."""
        choice = choose(wanted, probe.call_format, added_tokens, source)
        form = FORMATS[choice.name]
        guessed = probe.call_format is None and bool(form.signs)
        guessed = guessed and all(sign in added_tokens or sign in source for sign in form.signs)
        native_calls = probe.results and (choice.name == probe.call_format or (probe.tools and guessed))
        native_list = probe.tools and native_calls
        fallback = "" if native_list else _fallback(choice.name, probe, native_calls)
        if form.scanner is None and not native_calls:
            raise ConfigError(
                f"tool_format {choice.name!r} needs a chat template that renders calls and results itself: {fallback}"
            )
        opening = form.write_all([("zq", "{}")]).partition("zq")[0]
        return cls(choice, form, opening, native_calls, native_list, fallback)


def _fallback(name: str, probe: Probe, native_calls: bool) -> str:
    if native_calls:
        return (
            "the chat template does not render the tool list in front of a conversation: it is written into the "
            "system message"
        )
    if probe.lacks:
        why = f"the chat template does not render {' or '.join(probe.lacks)}"
    else:
        why = f"tool_format {name!r} is not what the chat template writes ({probe.call_format!r})"
    return f"{why}: tools, calls and results are written as text, in the form {name!r}"
