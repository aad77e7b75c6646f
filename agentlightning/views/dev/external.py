"""External models in the dev report: which there are, how often each was called, and what came of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from agentlightning.nouns import External, Json
from agentlightning.text import plural, printable

if TYPE_CHECKING:
    from agentlightning.records.attempts import AttemptReport


@dataclass(frozen=True, slots=True)
class ExternalLine:
    """An external model by its name in the resources; ``model`` is its true name. Tokens are what its endpoint
    reports."""

    name: str
    model: str
    calls: int
    failed: int
    rollouts: int
    prompt_tokens: int
    reply_tokens: int


def list_external(reports: Sequence[AttemptReport], models: Mapping[str, str]) -> list[ExternalLine]:
    """Those of the resources, called or not. ``models`` are their true names by their names in the resources."""
    lines: list[ExternalLine] = []
    for name, model in models.items():
        used = [(report.rollout.id, report.usage.external[name]) for report in reports if name in report.usage.external]
        lines.append(
            ExternalLine(
                name,
                model,
                sum(use.calls for _, use in used),
                sum(use.failed for _, use in used),
                len({rollout for rollout, _ in used}),
                sum(use.prompt_tokens for _, use in used),
                sum(use.reply_tokens for _, use in used),
            )
        )
    return lines


def said_by(external: External) -> str:
    """What a reply of somebody else's says, for people: its text where it is of an API whose replies are known, else
    the body as it came."""
    lines = [line.removeprefix("data:") for line in external.reply.splitlines() if line.startswith("data:")]
    said = "".join(text for body in lines or [external.reply] for text in _texts(_read(body)))
    return said or external.reply


def _read(body: str) -> Json:
    try:
        return json.loads(body)
    except ValueError:  # the last event of a stream, say
        return None


def _texts(value: Json) -> Iterator[str]:
    """The text of a body or an event of Chat Completions, Completions, Messages or Responses."""
    if isinstance(value, list):
        for item in cast("list[Json]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        record = cast("dict[str, Json]", value)
        kind = str(record.get("type", ""))
        if kind.endswith((".done", ".added", ".completed")):
            return  # repeats what its deltas said
        if isinstance(said := record.get("delta"), str) and kind == "response.output_text.delta":
            yield said
        for name in ("text", "content"):
            if isinstance(said := record.get(name), str):
                yield said
        for name in ("choices", "message", "delta", "content", "output"):
            if isinstance(record.get(name), dict | list):
                yield from _texts(record[name])
        for call in cast("list[Json]", record.get("tool_calls") or []):
            function = cast("dict[str, Json]", call.get("function") or {})
            name, arguments = function.get("name"), str(function.get("arguments") or "")
            yield f" [{name}] {arguments}" if name else arguments  # a stream has the name in its first piece


def external_lines(external: Sequence[ExternalLine]) -> Iterable[tuple[str, str]]:
    """Lines with their style."""
    if not external:
        return
    yield "", ""
    yield "bold", f"{plural(len(external), 'external model')}, recorded as given and never trained:"
    for line in external:
        failed = f", {line.failed} failed" if line.failed else ""
        tokens = (
            f", {line.prompt_tokens:,} -> {line.reply_tokens:,} tokens as its endpoint counts them"
            if line.calls
            else ""
        )
        called = f"{plural(line.calls, 'call')} in {plural(line.rollouts, 'rollout')}" if line.calls else "not called"
        yield "", printable(f"  {line.name} ({line.model}): {called}{failed}{tokens}")
