"""The response object of the Responses API: whole, and as the server-sent events that put it together. Pure
translation."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from agentlightning.gateway.wires.base import Begun, Reply, WireRequest
from agentlightning.gateway.wires.fields import mapping
from agentlightning.gateway.wires.responses_items import (
    Item,
    first_ids,
    message_item,
    output_items,
    reasoning_item,
    seals,
)
from agentlightning.nouns import FinishReason, Json, SamplingParams
from agentlightning.templates.base import ParsedDelta

_ECHOED = ("max_output_tokens", "metadata", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")
"""Settings that a response repeats as they were asked for; null where they were not."""


def response_object(request: WireRequest, call_id: str, created: int, used: SamplingParams) -> dict[str, Json]:
    """A response that is being sampled. `temperature` and `top_p` are what the run ``used``, whatever was asked for."""
    asked = request.asked
    reasoning = mapping(asked.get("reasoning"))
    response: dict[str, Json] = {
        "id": call_id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": request.messages[0].content if request.links.preface else None,
        "max_tool_calls": None,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.tool_use.parallel,
        "presence_penalty": 0.0,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "store": request.asked.get("store") is not False,
        "temperature": used.temperature,
        "text": _text(request),
        "tool_choice": _tool_choice(request),
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in request.tools
        ],
        "top_logprobs": 0,
        "top_p": used.top_p,
        "truncation": asked.get("truncation") or "disabled",
        "usage": None,
    }
    response |= {name: asked.get(name) for name in _ECHOED}
    response["metadata"] = asked.get("metadata") or {}
    if request.links.conversation is not None:
        response["conversation"] = {"id": request.links.conversation}
    return response


def finished_response(request: WireRequest, reply: Reply, output: Sequence[Item] | None = None) -> dict[str, Json]:
    """The response of a recorded call. ``output`` are its items in another order than their own."""
    cut = reply.choices[0].finish is FinishReason.LENGTH
    response = response_object(request, reply.id, reply.created, reply.used) | {
        "completed_at": None if cut else reply.completed,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output_items(request, reply) if output is None else output,
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.reused_tokens, "cache_write_tokens": 0},
            "output_tokens": reply.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": reply.thought_tokens},
            "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        },
    }
    if request.options.token_ids:
        response["token_ids"] = reply.choices[0].token_ids.tolist()
        if reply.prompt_ids is not None:
            response["prompt_token_ids"] = reply.prompt_ids.tolist()
    return response


def _text(request: WireRequest) -> dict[str, Json]:
    asked = mapping(request.asked.get("text"))
    told: dict[str, Json] = {"format": {"type": "text"}}
    if request.output is not None and request.output.schema is not None and asked.get("format") is not None:
        told["format"] = {**mapping(asked["format"]), "schema": request.output.schema}
    elif request.output is not None and asked.get("format") is not None:
        told["format"] = {"type": "json_object"}
    return told if asked.get("verbosity") is None else {**told, "verbosity": asked["verbosity"]}


def _tool_choice(request: WireRequest) -> Json:
    if request.tool_use.names is None:
        return request.tool_use.choice
    named = [{"type": "function", "name": name} for name in request.tool_use.names]
    if request.tool_use.choice == "required" and len(named) == 1:
        return named[0]
    return {"type": "allowed_tools", "mode": request.tool_use.choice, "tools": named}


# --------------------------------------------------------------------------- events


class ResponsesStream:
    """Server-sent events of one response. Put together they are the JSON body, which the last event repeats.

    Reasoning and text are told as they come, each item closed before the next is opened. Function calls are told whole
    at the end, since text may still follow one and an answer has one text. Logprobs come with the text's end: the
    engine tells them when the sample is whole.
    """

    content_type = "text/event-stream; charset=utf-8"
    heartbeat = b": waiting\n\n"

    def __init__(self, request: WireRequest, call_id: str, created: int) -> None:
        self._request = request
        self._call_id = call_id
        self._created = created
        self._sent = 0
        self._begun: list[str] = []
        self._open: str | None = None
        self._thoughts: list[str] = []
        self._thought_id, self._text_id = first_ids(call_id)

    def begin(self, begun: Begun) -> bytes:
        response = response_object(self._request, self._call_id, self._created, begun.used)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def delta(self, index: int, delta: ParsedDelta) -> bytes:
        events: list[bytes] = []
        # Reasoning that comes once the text has begun is told with the whole response.
        if delta.reasoning and (not self._begun or self._open == self._thought_id):
            if not self._begun:
                events.append(self._begin_item(reasoning_item(self._thought_id, "", "in_progress")))
            self._thoughts.append(delta.reasoning)
            events.append(self._piece(self._thought_id, "reasoning_text", delta.reasoning))
        if delta.content:
            if self._open == self._thought_id:
                events.append(
                    self._end_item(
                        reasoning_item(
                            self._thought_id, "".join(self._thoughts), "completed", seal=seals(self._request)
                        )
                    )
                )
            if self._open is None:
                events.append(self._begin_item(message_item(self._text_id, "", "in_progress")))
            events.append(self._piece(self._text_id, "output_text", delta.content))
        return b"".join(events)

    def end(self, reply: Reply) -> bytes:
        items = {item["id"]: item for item in output_items(self._request, reply)}
        events: list[bytes] = []
        if self._open is not None:
            events.append(self._end_item(items[self._open]))
        for item_id, item in items.items():
            if item_id not in self._begun:
                events.append(self._whole_item(item))
        response = finished_response(self._request, reply, [items[item_id] for item_id in self._begun])
        events.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(events)

    # ----------------------------------------------------------------- one item
    def _begin_item(self, item: Item) -> bytes:
        """Adds an item with the place of its text, which is empty yet."""
        self._open = item["id"]
        self._begun.append(item["id"])
        place = len(self._begun) - 1
        added = self._event("response.output_item.added", output_index=place, item={**item, "content": []})
        return added + self._event("response.content_part.added", **self._place(item["id"]), part=item["content"][0])

    def _piece(self, item_id: str, kind: str, delta: str) -> bytes:
        more: dict[str, Json] = {"logprobs": []} if kind == "output_text" else {}
        return self._event(f"response.{kind}.delta", **self._place(item_id), delta=delta, **more)

    def _end_item(self, item: Item) -> bytes:
        self._open = None
        place, part = self._place(item["id"]), item["content"][0]
        more: dict[str, Json] = {}
        if part["type"] == "output_text":  # this event alone tells them without bytes
            more["logprobs"] = [
                {name: each[name] for name in ("token", "logprob", "top_logprobs")} for each in part["logprobs"]
            ]
        return b"".join(
            (
                self._event(f"response.{part['type']}.done", **place, text=part["text"], **more),
                self._event("response.content_part.done", **place, part=part),
                self._event("response.output_item.done", output_index=place["output_index"], item=item),
            )
        )

    def _whole_item(self, item: Item) -> bytes:
        if item["type"] == "function_call":
            return self._whole_call(item)
        part = item["content"][0]
        empty: Item = {**part, "text": ""} | ({"logprobs": []} if "logprobs" in part else {})
        events = self._begin_item({**item, "status": "in_progress", "content": [empty]})
        if part["text"]:
            events += self._piece(item["id"], part["type"], part["text"])
        return events + self._end_item(item)

    def _whole_call(self, item: Item) -> bytes:
        self._begun.append(item["id"])
        place: dict[str, Json] = {"output_index": len(self._begun) - 1}
        where, arguments = {"item_id": item["id"], **place}, item["arguments"]
        return b"".join(
            (
                self._event(
                    "response.output_item.added", **place, item={**item, "status": "in_progress", "arguments": ""}
                ),
                self._event("response.function_call_arguments.delta", **where, delta=arguments) if arguments else b"",
                self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=arguments),
                self._event("response.output_item.done", **place, item=item),
            )
        )

    def _place(self, item_id: str) -> dict[str, Json]:
        return {"item_id": item_id, "output_index": self._begun.index(item_id), "content_index": 0}

    def _event(self, kind: str, **fields: Json) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._sent, **fields})
        self._sent += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
