"""Which agent of a program makes a call. Pure: what a request says about itself, and the user's rules, in; a name out.

Frameworks do not say it, so each way that a user can is heard, the most explicit first: a path segment, the header
`X-Agent-Name`, an API key `agent:NAME`, `user` or metadata in the body, OpenTelemetry's baggage, the rules in
`gateway.agents`. Where none of them speaks, an identical system prompt and set of tools (by their names) is one agent,
named after their content, so that its name is the same in every attempt and run. The system prompt is what stands
before all other messages: a note in the middle of a conversation makes no other agent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Literal
from urllib.parse import unquote

from agentlightning.gateway.wires.base import WireRequest
from agentlightning.gateway.wires.fields import mapping
from agentlightning.nouns import Message, Tool
from agentlightning.settings.fields import AgentRule
from agentlightning.text import clean_name

LEARNED = "agent-"
"""What a name begins with that comes from content alone."""

How = Literal["path", "header", "api key", "body", "baggage", "rule", "learned"]

GUESSED: tuple[How, ...] = ("rule", "learned")
"""Where the request itself names no agent: what the agent's process tells afterwards, from its spans, counts before
these."""

_SAID = "agent:"
_BAGGAGE = "gen_ai.agent.name"


def named_by_request(path: str | None, headers: Mapping[str, str], query: Mapping[str, str]) -> tuple[str, How] | None:
    """What a request's path and headers say, before its body is read. Header names are looked up as `Mapping` does:
    pass one that ignores case."""
    if path and (name := clean_name(path)):
        return name, "path"
    if (name := clean_name(headers.get("X-Agent-Name", ""))) is not None:
        return name, "header"
    keys = (
        headers.get("Authorization", "").removeprefix("Bearer "),
        headers.get("x-api-key", ""),
        headers.get("x-goog-api-key", ""),
        query.get("key", ""),
    )
    for key in keys:
        if (name := _said(key)) is not None:
            return name, "api key"
    return None


def named_by_body(request: WireRequest, headers: Mapping[str, str], rules: Mapping[str, AgentRule]) -> tuple[str, How]:
    """What the rest of a request says of its agent."""
    metadata = mapping(request.asked.get("metadata"))
    stated = metadata.get("agent")
    if isinstance(stated, str) and (name := clean_name(stated)) is not None:
        return name, "body"
    for value in (request.asked.get("user"), metadata.get("user_id")):
        if isinstance(value, str) and (name := _said(value)) is not None:
            return name, "body"
    if (name := _in_baggage(headers.get("baggage", ""))) is not None:
        return name, "baggage"
    system = "\n".join(message.content for message in takewhile(_is_system, request.messages))
    for name, rule in rules.items():
        if _follows(rule, system, request.tools):
            return name, "rule"
    return name_from_content(system, request.tools[: len(request.tools) - request.loaded]), "learned"


def name_from_content(system: str, tools: Sequence[Tool]) -> str:
    """``agent-`` and six hexadecimal digits of the system prompt and the tools' names, whatever their order. On every
    call: it reads no schema."""
    content = blake2b(system.strip().encode("utf-8", "replace"), digest_size=3)
    for name in sorted(tool.name for tool in tools):
        content.update(b"\0" + name.encode("utf-8", "replace"))
    return LEARNED + content.hexdigest()


def _is_system(message: Message) -> bool:
    return message.role == "system"


def _follows(rule: AgentRule, system: str, tools: Sequence[Tool]) -> bool:
    if rule.system is not None and re.search(rule.system, system) is None:
        return False
    return rule.tools is None or set(rule.tools) <= {tool.name for tool in tools}


def _said(value: str) -> str | None:
    return clean_name(value.removeprefix(_SAID)) if value.startswith(_SAID) else None


def _in_baggage(header: str) -> str | None:
    """The agent's name in a W3C baggage header, ``key=value;property,key=value``, its value percent-encoded."""
    for entry in header.split(","):
        key, equals, value = entry.partition(";")[0].partition("=")
        if equals and key.strip() == _BAGGAGE:
            return clean_name(unquote(value.strip()))
    return None
