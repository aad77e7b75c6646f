"""Formats: the ways to write tool calls, by name, and which of them a template or a tokenizer belongs to. Pure.

How each is read is told where its reader is: `tagged_calls`, `untagged_calls`, `harmony`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning.nouns import Json, Tool, ToolCall
from agentlightning.templates import harmony
from agentlightning.templates import tagged_calls as tagged
from agentlightning.templates.arguments import bare, to_gemma
from agentlightning.templates.base import FormatChoice
from agentlightning.templates.call_scanner import Scanner
from agentlightning.templates.untagged_calls import LlamaScanner, MistralScanner

Write = Callable[[str, str], str]
"""(name, arguments) -> one call. The name is plain text, the arguments are JSON, or whatever there is instead."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write tool calls."""

    name: str
    scanner: Callable[[Sequence[Tool]], Scanner] | None
    """Makes the reader of one reply. None: harmony, whose reply is not text with calls in it but a run of messages."""
    write: Write
    how: str
    """Tells a model that was given tools as text how to use one; the example stands below it."""
    example: str = ""
    """One call, as such a model is shown it."""
    before: str = ""
    between: str = "\n"
    after: str = ""
    """Around and between the calls of one reply."""
    apart: str = "\n"
    """Between the text of a reply and its calls."""
    signs: tuple[str, ...] = ()
    """Texts that give the format away where all of them are control tokens or in the template."""
    ends: tuple[str, ...] = ()
    """Control tokens that end a turn of the model's besides the one that the template writes."""
    goes_on: tuple[str, ...] = ()
    """Control tokens that the template ends a turn with and the model does not."""

    def write_reply(self, content: str, calls: Sequence[tuple[str, str]]) -> str:
        """A reply with its text and its calls."""
        return content + (self.apart if content and calls else "") + self.write_all(calls)

    def write_all(self, calls: Sequence[tuple[str, str]]) -> str:
        """The calls of one reply. "" for none."""
        return (
            self.before + self.between.join([self.write(name, arguments) for name, arguments in calls]) + self.after
            if calls
            else ""
        )

    def instructions(self, tools: Sequence[Json], *, as_text: bool) -> str:
        """The system text that offers tools where the chat template has no place for them. ``as_text``: nor has it one
        for results."""
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        return (
            f"You can use tools. These are described here, one JSON object a line:\n<tools>\n{listed}\n</tools>\n\n"
            f"{self.how}\n{self.example}"
            + ("\n\nThe results come back inside <tool_response></tool_response>." if as_text else "")
        )


def tool_response(content: str) -> str:
    """A tool's result as text of a user turn."""
    return f"<tool_response>\n{content}\n</tool_response>"


# --------------------------------------------------------------------------- writing


def _json(name: str, scanner: Callable[[Sequence[Tool]], Scanner], pattern: str, how: str, **more: Any) -> ToolFormat:
    """A format whose pattern has places for the name, as a JSON string, and for the arguments."""

    def write(name: str, arguments: str) -> str:
        return pattern % (json.dumps(name, ensure_ascii=False), arguments)

    example = (
        more.get("before", "")
        + pattern % ("<name of the tool>", "<its arguments as a JSON object>")
        + more.get("after", "")
    )
    return ToolFormat(name, scanner, write, how, example, **more)


def _shown(name: str, scanner: Callable[[Sequence[Tool]], Scanner], write: Write, **more: Any) -> ToolFormat:
    """A format that is told by an example."""
    example = more.get("before", "") + write("name_of_the_tool", '{"argument": "value"}') + more.get("after", "")
    return ToolFormat(name, scanner, write, _AS_BELOW, example, **more)


def _qwen3_coder(name: str, arguments: str) -> str:
    members = bare(arguments)
    inside = (
        arguments + "\n"
        if members is None
        else "".join([f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in members])
    )
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _glm(name: str, arguments: str) -> str:
    members = bare(arguments)
    inside = (
        arguments + "\n"
        if members is None
        else "".join([f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in members])
    )
    return f"<tool_call>{name}\n{inside}</tool_call>"


def _deepseek_v3(name: str, arguments: str) -> str:
    return f"{tagged.CALL}function{tagged.SEPARATOR}{name}\n```json\n{arguments}\n```{tagged.CALL_END}"


def _deepseek_v31(name: str, arguments: str) -> str:
    return f"{tagged.CALL}{name}{tagged.SEPARATOR}{arguments}{tagged.CALL_END}"


def _gemma4(name: str, arguments: str) -> str:
    return f"<|tool_call>call:{name}{to_gemma(arguments, GEMMA_QUOTE)}<tool_call|>"


def _function_gemma(name: str, arguments: str) -> str:
    return f"<start_function_call>call:{name}{to_gemma(arguments, FUNCTION_GEMMA_QUOTE)}<end_function_call>"


def _mistral_v11(name: str, arguments: str) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{arguments}"


GEMMA_QUOTE, FUNCTION_GEMMA_QUOTE = '<|"|>', "<escape>"
_NAMED = '{"name": %s, "arguments": %s}'
_HERMES = '<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>'
_AS_BELOW = "To use one, write its name and arguments in this form, once for each use:"
_TAGGED = "To use one, write its name and arguments as JSON between <tool_call> tags, once for each use:"
_BARE = "To use one, reply with nothing but its name and arguments as JSON, one line for each use:"

_ALL = (
    _shown("qwen3_coder", tagged.qwen3_coder, _qwen3_coder, signs=("<tool_call>", "<function=", "<parameter=")),
    _shown("glm", tagged.glm, _glm, signs=("<tool_call>", "<arg_key>"), ends=("<|user|>", "<|observation|>")),
    _shown("deepseek_v3", tagged.deepseek, _deepseek_v3, apart="", before=tagged.CALLS, after=tagged.CALLS_END,
    signs=(tagged.CALLS, tagged.SEPARATOR)),
    _shown("deepseek_v31", tagged.deepseek, _deepseek_v31, apart="", before=tagged.CALLS, between="",
    after=tagged.CALLS_END),
    ToolFormat(
        "harmony", None, harmony.written, _AS_BELOW, harmony.written("name_of_the_tool",
        '{"argument": "value"}') + harmony.CALL, apart="", between=harmony.CALL + harmony.START + "assistant",
        signs=harmony.TOKENS, ends=(harmony.RETURN, harmony.CALL), goes_on=(harmony.END,),
    ),
    _shown("gemma4", tagged.gemma4, _gemma4, apart="", between="", signs=("<|tool_call>", "<tool_call|>"),
    ends=("<turn|>", "<|tool_response>")),
    _shown(
        "function_gemma", tagged.function_gemma, _function_gemma, apart="", between="",
        signs=("<start_function_call>", "<end_function_call>"), ends=("<end_of_turn>", "<start_function_response>"),
    ),
    _json("phi4", tagged.phi4, _NAMED, _AS_BELOW, apart="", before="<|tool_call|>[", between=", ",
    after="]<|/tool_call|>", signs=("<|tool_call|>", "<|/tool_call|>")),
    _shown("mistral_v11", MistralScanner, _mistral_v11, apart="", between="", signs=("[TOOL_CALLS]", "[ARGS]")),
    _json("mistral", MistralScanner, _NAMED, _AS_BELOW, apart="", before="[TOOL_CALLS] [", between=", ", after="]",
    signs=("[TOOL_CALLS]",)),
    _json("hermes", tagged.hermes, _HERMES, _TAGGED, signs=("<tool_call>", "</tool_call>")),
    _json("llama3_json", LlamaScanner, '{"name": %s, "parameters": %s}', _BARE, signs=("<|python_tag|>",),
    ends=("<|eom_id|>", "<|eot_id|>")),
    _json("text", tagged.hermes, _HERMES, _TAGGED),
)  # fmt: skip

FORMATS: dict[str, ToolFormat] = {form.name: form for form in _ALL}
"""By name, those with more signs before those that share a part of them. ``text`` is Hermes' form under our own
instructions, whatever the chat template could do."""


# --------------------------------------------------------------------------- choosing


def read_whole(form: ToolFormat, tools: Sequence[Tool], text: str) -> tuple[str, list[ToolCall]]:
    """The text and the calls of a finished reply."""
    if form.scanner is None:
        reader = harmony.HarmonyReader(tools=True)
        first, last = reader.feed(text), reader.finish()
        return first.content + last.content, [*first.tool_calls, *last.tool_calls]
    scanner = form.scanner(tools)
    content, calls = scanner.feed(text)
    rest, more = scanner.finish()
    return content + rest, calls + more


def choose(asked: str | None, written: str | None, known: Collection[str], source: str) -> FormatChoice:
    """The format of a model. ``asked``: by the user; ``written``: what its template renders a call in; ``known``: the
    texts of its added tokens."""
    if asked is not None:
        return FormatChoice(asked, True, "asked for")
    if written is not None:
        return FormatChoice(written, True, "the chat template writes calls in this form")
    for form in _ALL:
        if form.signs and all(sign in known or sign in source for sign in form.signs):
            return FormatChoice(
                form.name, False, f"the chat template renders no call, but it or the tokenizer has {form.signs[0]}"
            )
    return FormatChoice("text", False, "neither the chat template nor the tokenizer shows a form of its own")
