"""What the gateway's tests put behind it: an engine that says what it is told to, and a chat template small enough to
see through."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentlightning.engines.base import OnTokens, Sample, SampleRequest
from agentlightning.errors import ContextLengthError, EngineError, TemplateError
from agentlightning.nouns import FinishReason, Message, Segment, Tool, ToolCall
from agentlightning.templates.base import Parsed, ParsedDelta, Rendering, SampledTurn, Template

Say = str | Exception
"""What one sample says (without its end of turn), or how it fails."""


@dataclass
class ScriptedEngine:
    """A real Engine without a model: each sample is the next text of ``script`` (or what ``answer`` makes of the
    decoded prompt).

    ``hold`` keeps samples back until it is set; ``chunk`` tokens come at a time, ``delay`` seconds apart. Token t of a
    sample has logprob -(t + 1) / 1000. ``requests`` holds what was asked, ``cancelled`` counts withdrawn requests.
    """

    template: Template
    script: list[Say] = field(default_factory=list)
    answer: Callable[[str, SampleRequest], Say] | None = None
    hold: asyncio.Event | None = None
    chunk: int = 4
    delay: float = 0.0
    context_length: int = 100_000
    policy_version: int = 1
    canonical: bool = True
    """False: every character is a token of its own (or more), whatever the tokenizer would make of the text."""
    split_at: int | None = None
    """After this many tokens the policy's version grows by one."""
    requests: list[SampleRequest] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    most_running: int = 0

    def version(self, policy: str = "main") -> int:
        return self.policy_version

    async def close(self) -> None:
        self.script.clear()

    async def sample(self, request: SampleRequest, on_tokens: OnTokens | None = None) -> Sample:
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._sample(request, on_tokens)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _sample(self, request: SampleRequest, on_tokens: OnTokens | None) -> Sample:
        if len(request.prompt_ids) >= self.context_length:
            raise ContextLengthError(len(request.prompt_ids), self.context_length)
        said = (
            self.answer(self.template.decode(request.prompt_ids), request)
            if self.answer
            else self.script.pop(0)
            if self.script
            else "ok"
        )
        if isinstance(said, Exception):
            raise said
        ids, finish, stop = self.draw(said, request)
        for start in range(0, len(ids), self.chunk):
            while self.hold is not None and not self.hold.is_set():  # noqa: ASYNC110 - it is set from another thread
                await asyncio.sleep(0.002)
            await asyncio.sleep(self.delay)
            if on_tokens is not None:
                on_tokens(ids[start : start + self.chunk])
        logprobs = array("f", [-(t + 1) / 1000 for t in range(len(ids))])
        cut = self.split_at or len(ids)
        segments = [Segment(ids[:cut], logprobs[:cut], self.policy_version)]
        if ids[cut:]:
            segments.append(Segment(ids[cut:], logprobs[cut:], self.policy_version + 1))
        return Sample(tuple(segments), finish, stop, first_token_s=0.001, total_s=0.002)

    def draw(self, text: str, request: SampleRequest) -> tuple[array[int], FinishReason, str | None]:
        params = request.params
        stop = None
        for candidate in params.stop:
            if candidate in text:
                text, stop = text[: text.index(candidate) + len(candidate)], candidate
        pieces = [text] if self.canonical else list(text)
        ids = array("i", [token for piece in pieces for token in self.template.encode(piece, start=False)])
        if stop is None:
            ids.append(params.stop_token_ids[0])
        if len(ids) > params.max_tokens:
            return ids[: params.max_tokens], FinishReason.LENGTH, None
        return ids, FinishReason.STOP, stop


class BrokenEngine(ScriptedEngine):
    async def _sample(self, request: SampleRequest, on_tokens: OnTokens | None) -> Sample:
        raise EngineError("out of memory")


# --------------------------------------------------------------------------- a template to see through

START, END = "<|im_start|>", "<|im_end|>"
_CONTROL = re.compile(re.escape(START) + "|" + re.escape(END))
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)


class GlassTemplate:
    """ChatML over bytes: id 1 and 2 are the control tokens, 3 + b a byte. ``drops_reasoning``: of turns before the last
    user message, as Qwen3 does.

    ``shows_ids`` renders tool-call ids, as Mistral does; ``counts`` writes the number of messages into the first line,
    so that no history is ever the beginning of a longer one.
    """

    stop_token_ids = (2,)
    tool_format = "hermes"
    kwargs_key = b""

    def with_kwargs(self, kwargs: Mapping[str, Any]) -> GlassTemplate:
        return self

    def unused_kwargs(self, kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(kwargs)

    def __init__(self, *, drops_reasoning: bool = False, shows_ids: bool = False, counts: bool = False) -> None:
        self.drops_reasoning, self.shows_ids, self.counts = drops_reasoning, shows_ids, counts
        self.encoded = 0

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], sampled: Mapping[int, SampledTurn]
    ) -> Rendering:
        last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        texts: list[str] = []
        text = f"[{len(messages)}]\n" if self.counts else ""
        rewritten: list[int] = []
        if tools:
            text += f"{START}tools\n{json.dumps([tool.name for tool in tools])}{END}\n"
        for i, message in enumerate(messages):
            text += f"{START}{message.role}\n"
            if i in sampled:
                texts.append(text)
                if self.drops_reasoning and "<think>" in sampled[i].text and i < last_user:
                    rewritten.append(i)
                text = "\n" if sampled[i].ended_with else END + "\n"
                continue
            if message.reasoning and not (self.drops_reasoning and i < last_user):
                text += f"<think>{message.reasoning}</think>"
            if message.tool_call_id and self.shows_ids:
                text += f"[{message.tool_call_id}]"
            text += message.content
            for call in message.tool_calls:
                text += f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments}}}</tool_call>' + (
                    call.id if self.shows_ids else ""
                )
            text += END + "\n"
        return Rendering(
            (*texts, f"{text}{START}assistant\n"), "it drops earlier reasoning" if rewritten else None, tuple(rewritten)
        )

    def encode(self, text: str, *, start: bool) -> array[int]:
        self.encoded += len(text)
        ids = array("i")
        position = 0
        for found in _CONTROL.finditer(text):
            ids.extend(b + 3 for b in text[position : found.start()].encode("utf-8", "surrogatepass"))
            ids.append(1 if found.group() == START else 2)
            position = found.end()
        ids.extend(b + 3 for b in text[position:].encode("utf-8", "surrogatepass"))
        return ids

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> list[array[int] | TemplateError]:
        return [self.encode(text, start=start) for text, start in texts]

    def decode(self, token_ids: Sequence[int]) -> str:
        names = {1: START.encode(), 2: END.encode()}
        return b"".join(names.get(i) or bytes([i - 3] if 3 <= i < 259 else []) for i in token_ids).decode(
            "utf-8", "replace"
        )

    def sampled_turn(self, token_ids: Sequence[int]) -> SampledTurn:
        text = self.decode(token_ids)
        return SampledTurn(text.removesuffix(END), END if text.endswith(END) else "")

    def parse(
        self, token_ids: Sequence[int], tools: Sequence[Tool], finish: FinishReason, stop_string: str | None = None
    ) -> Message:
        text = self.sampled_turn(token_ids).text.removesuffix(stop_string or "")
        thought = _THINK.search(text)
        text = _THINK.sub("", text, count=1)
        calls: list[ToolCall] = []

        def take(found: re.Match[str]) -> str:
            body = found.group(1)
            named = re.search(r'"name": ?"(\w+)", ?"arguments": ?(.*)}\s*$', body, re.DOTALL)
            if not tools or named is None:
                return found.group()
            calls.append(ToolCall(f"call_{secrets.token_hex(6)}", named[1], named[2]))
            return ""

        content = _CALL.sub(take, text)
        return Message("assistant", content, tuple(calls), None, None, thought[1] if thought else None)

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        finish: FinishReason,
        stop_string: str | None = None,
        *,
        plain: bool = False,
    ) -> Parsed:
        text = self.sampled_turn(token_ids).text.removesuffix(stop_string or "")
        if plain:
            return Parsed(Message("assistant", text))
        message = self.parse(token_ids, tools, finish, stop_string)
        thought = _THINK.search(text)
        return Parsed(
            message, message.content.count("<tool_call>"), len(self.encode(thought[0], start=False)) if thought else 0
        )

    def stream(self, tools: Sequence[Tool], stop: Sequence[str] = (), *, plain: bool = False) -> GlassParser:
        return GlassParser(self, tools, plain)


class GlassParser:
    """Holds text back from the first `<` on and while a character is not whole."""

    def __init__(self, template: GlassTemplate, tools: Sequence[Tool], plain: bool) -> None:
        self._template, self._tools, self._plain = template, tools, plain
        self._ids = array("i")
        self._shown = 0
        self.malformed = 0
        self.thought_tokens = 0

    def feed(self, token_ids: array[int]) -> ParsedDelta:
        self._ids.extend(token_ids)
        text = self._template.decode(self._ids).split("<", 1)[0].rstrip("\ufffd")[:-8]
        shown, self._shown = self._shown, max(self._shown, len(text))
        return ParsedDelta(text[shown:])

    def finish(self, finish: FinishReason, stop_string: str | None = None) -> ParsedDelta:
        parsed = self._template.read(self._ids, self._tools, finish, stop_string, plain=self._plain)
        message, self.malformed, self.thought_tokens = parsed.message, parsed.malformed, parsed.thought_tokens
        return ParsedDelta(message.content[self._shown :], message.reasoning or "", message.tool_calls)


def without_ids(message: Message) -> Message:
    """A message whose random ids do not matter."""
    return replace(message, tool_calls=tuple(replace(call, id="") for call in message.tool_calls))
