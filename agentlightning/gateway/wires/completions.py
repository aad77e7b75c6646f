"""OpenAI's legacy Completions: a prompt as text or token ids, continued as it is, without messages and chat template.

Pure translation. One prompt per call: a list of prompts is refused by name. A text prompt is never read as control
tokens; token ids are taken as they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, cast

import orjson

from agentlightning.gateway.wires.base import (
    AskedSampling,
    Begun,
    CallError,
    Choice,
    EarlierReplies,
    Reply,
    ReplyOptions,
    Target,
    Use,
    WireRequest,
)
from agentlightning.gateway.wires.fields import (
    MAX_SAMPLES,
    bad,
    boolean,
    check_depth,
    integer,
    number,
    refuse_unless_neutral,
    settings,
    shown,
    stops,
    string,
    unsupported,
)
from agentlightning.gateway.wires.openai import PROMPT_TOO_LONG, ChunkStream, include_usage, openai_error, usage
from agentlightning.nouns import FinishReason, Json
from agentlightning.templates.base import ParsedDelta

MAX_TOKENS = 16
"""What the API samples where a request does not say."""

MAX_ID = 2**31 - 1

_KEPT = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "n",
    "seed",
    "stop",
    "stream",
    "logprobs",
    "echo",
    "user",
    "metadata",
)
"""What the record keeps of a request besides its prompt."""

_NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "prompt_logprobs": (False,),
}
"""Fields of the API that cannot be honoured (extra_settings.py has those of other servers), with the values (besides
null) that ask for nothing."""

_INSTEAD = {
    "suffix": "the model continues a text, it does not fill one in",
    "prompt_logprobs": "logprobs of the sampled tokens are available with logprobs=1",
}


class Completions:
    """``POST completions``. Satisfies `Wire`."""

    name = "completions"

    id_prefix = "cmpl-"

    def owns(self, path: str) -> bool:
        return path == "completions"

    def use(self, target: Target) -> Use | None:
        return "call" if target.method == "POST" else None

    def request(self, target: Target, body: Mapping[str, Json], earlier: EarlierReplies) -> WireRequest:
        refuse_unless_neutral(body, _NEUTRAL, _INSTEAD)
        prompt = _prompt(body.get("prompt"))
        n = integer(body, "n", 1, MAX_SAMPLES) or 1
        best_of = integer(body, "best_of", 1)
        if best_of not in (None, 1, n):
            raise unsupported("best_of", best_of, "use n, which returns them all")
        logprobs = integer(body, "logprobs", 0)
        if logprobs is not None and logprobs > 1:
            raise unsupported("logprobs", logprobs, "logprobs of the sampled tokens are available with logprobs=1")
        echo = boolean(body, "echo")
        if echo and not isinstance(prompt, str):
            raise unsupported("echo", True, "a prompt of token ids has no text to repeat")
        if echo and logprobs is not None:
            raise unsupported(
                "echo", True, "together with logprobs it asks for those of the prompt, which are not known"
            )
        string(body, "user")
        top_k = integer(body, "top_k", -1)
        asked = {name: body[name] for name in _KEPT if body.get(name) is not None}
        check_depth(settings(body, "metadata"), "metadata")
        return WireRequest(
            model=string(body, "model") or "",
            messages=(),
            prompt=prompt,
            prompt_field="prompt",
            sampling=AskedSampling(
                temperature=number(body, "temperature", 0.0, 100.0),
                top_p=number(body, "top_p", 0.0, 1.0, above=True),
                top_k=None if top_k is None else max(top_k, 0),
                max_tokens=integer(body, "max_tokens", 1) or MAX_TOKENS,
                seed=integer(body, "seed", -(2**63), 2**63 - 1),
                stop=stops(body.get("stop")),
            ),
            options=ReplyOptions(
                n=n,
                stream=boolean(body, "stream"),
                logprobs=logprobs is not None,
                token_ids=boolean(body, "return_token_ids"),
                include_usage=include_usage(body),
                echo=echo,
            ),
            asked=asked,
        )

    def reply(self, request: WireRequest, reply: Reply) -> bytes:
        choices = [
            _choice(request, reply, index, _echoed(request) + each.message.content)
            for index, each in enumerate(reply.choices)
        ]
        return orjson.dumps({**_base(request, reply.id, reply.created), "choices": choices, "usage": usage(reply)})

    def stream(self, request: WireRequest, call_id: str, created: int) -> CompletionStream:
        return CompletionStream(request, call_id, created)

    def error(self, error: CallError) -> bytes:
        return openai_error(error, PROMPT_TOO_LONG)


class CompletionStream(ChunkStream):
    """See `ChunkStream`. Before the finish chunks come the prompt, where it is to be echoed, and the texts."""

    def __init__(self, request: WireRequest, call_id: str, created: int) -> None:
        super().__init__(request, _base(request, call_id, created))

    def begin(self, begun: Begun) -> bytes:
        echoed = _echoed(self._request)
        return b"".join(self._text(index, echoed) for index in range(self._request.options.n)) if echoed else b""

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        return self._text(index, delta.content) if delta.content else b""

    def _text(self, index: int, added: str) -> bytes:
        return self._chunk([{"index": index, "text": added, "logprobs": None, "finish_reason": None}])

    def _finished(self, reply: Reply, index: int) -> dict[str, Json]:
        return _choice(self._request, reply, index, "")


# --------------------------------------------------------------------------- parts of a reply


def _base(request: WireRequest, call_id: str, created: int) -> dict[str, Json]:
    return {"id": call_id, "object": "text_completion", "created": created, "model": request.model}


def _echoed(request: WireRequest) -> str:
    return request.prompt if request.options.echo and isinstance(request.prompt, str) else ""


def _choice(request: WireRequest, reply: Reply, index: int, shown_text: str) -> dict[str, Json]:
    choice = reply.choices[index]
    entry: dict[str, Json] = {
        "index": index,
        "text": shown_text,
        "logprobs": _logprobs(request, choice) if request.options.logprobs else None,
        "finish_reason": "length" if choice.finish is FinishReason.LENGTH else "stop",
    }
    if request.options.token_ids:
        entry["token_ids"] = choice.token_ids.tolist()
        entry["prompt_token_ids"] = None if reply.prompt_ids is None else reply.prompt_ids.tolist()
    return entry


def _logprobs(request: WireRequest, choice: Choice) -> dict[str, Json]:
    """Of the sampled tokens, the end of turn and a stop string's among them. ``top_logprobs`` (with logprobs=1) knows
    no others."""
    pairs = list(zip(choice.token_texts, choice.logprobs, strict=True))
    offsets: list[int] = []
    at = 0
    for piece, _ in pairs:
        offsets.append(min(at, len(choice.message.content)))
        at += len(piece)
    return {
        "tokens": list(choice.token_texts),
        "token_logprobs": choice.logprobs.tolist(),
        "top_logprobs": [{piece: logprob} for piece, logprob in pairs] if request.asked.get("logprobs") else None,
        "text_offset": offsets,
    }


# --------------------------------------------------------------------------- parts of a request


def _prompt(value: Json) -> str | array[int]:
    """The only prompt of a request: text, token ids, or a list that holds one of these."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        several = cast("list[Any]", value)
        if len(several) > 1:
            raise bad(f"prompt holds {len(several)} prompts: send one per request", "prompt", "unsupported_parameter")
        value = several[0]
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value:
        ids = cast("list[Any]", value)
        wrong = next((each for each in ids if type(each) is not int or not 0 <= each <= MAX_ID), None)
        if wrong is None and None not in ids:
            return array("i", ids)
        raise bad(f"prompt holds {shown(wrong)}, which is no token id", "prompt")
    raise bad(f"prompt must be a text or a list of token ids with something in it, not {shown(value)}", "prompt")
