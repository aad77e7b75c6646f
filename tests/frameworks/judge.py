"""What is wrong with a conversation: the record, the tool-call ids, and the client's view of it, held against the case.
Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.frameworks.cases import Case

_RESULT = re.compile(r"<\|im_start\|>tool\n\[([^\]]*)\]")
"""Where the template renders a tool's result, with the id of the call that it is of."""

TAIL = 300
"""Characters of a text around the place where it goes wrong."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What should not be so, each one line or a small diff: of the record's ``tokens``, of the ``ids`` of tool calls,
    and of the client's ``view`` (what it was refused, the arguments its tools got, the final answer).

    ``outcome`` says in a few words what became of the conversation.
    """

    tokens: tuple[str, ...]
    ids: tuple[str, ...]
    view: tuple[str, ...]
    outcome: str

    @property
    def problems(self) -> tuple[str, ...]:
        return self.view + self.tokens + self.ids


def judge(case: Case, wire: str, record: dict[str, Any], view: dict[str, Any]) -> Verdict:
    """``wire`` is the API that the program is said to speak, ``record`` the house's report of the attempt, and ``view``
    the program's: ``answer`` or ``error``, and ``seen``, the tools that were run."""
    calls = [call for call in record["calls"] if call["status"] != "refused"]
    refused = [f"refused: {call['error']}" for call in record["calls"] if call["status"] == "refused"]
    seen = list(dict.fromkeys(refused))
    tokens: list[str] = []
    if record["incomplete"]:
        tokens.append(f"{record['incomplete']} calls could not be recorded whole")
    tokens += [f"call {i} came over {call['wire']}, not {wire}" for i, call in enumerate(calls) if call["wire"] != wire]
    tokens += [f"call {i} is {call['status']}" for i, call in enumerate(calls) if call["status"] != "complete"]
    if not calls:
        seen.append(f"no call was recorded; the program says: {said(view)}")
        return Verdict(tuple(tokens), (), tuple(seen), "no call")
    if case.broken:
        return Verdict((*tokens, *unlike_its_branch(calls)), (), tuple(seen), fate(case, calls, view))
    tokens += off_the_path(case, calls, record["leaves"])
    ids = wrong_ids(calls)
    seen += wrong_view(case, view)
    return Verdict(tuple(tokens), tuple(ids), tuple(seen), "wrong" if tokens or ids or seen else "exact")


def said(view: dict[str, Any]) -> str:
    return view.get("error") or repr(view.get("answer"))


# --------------------------------------------------------------------------- the tree


def off_the_path(case: Case, calls: list[dict[str, Any]], leaves: int) -> list[str]:
    """One path: the first call is its root, each later one goes on from the one before with all that was prompted and
    sampled."""
    problems: list[str] = []
    if len(calls) != len(case.turns):
        problems.append(f"{len(calls)} calls instead of {len(case.turns)}")
    for i, call in enumerate(calls):
        wanted = "continued" if i else "root"
        if call["branch"] != wanted:
            problems.append(f"call {i} is {call['branch']}, not {wanted}")
    for i, (before, after) in enumerate(pairwise(calls), 1):
        if not begins(after["prompt"], before["whole"]):
            problems.append(
                f"call {i}'s prompt does not begin with call {i - 1}'s prompt and sample:\n{diff(before, after)}"
            )
    if leaves != 1:
        problems.append(f"the tree has {leaves} leaves")
    return problems


def unlike_its_branch(calls: list[dict[str, Any]]) -> list[str]:
    """Of a conversation that went wrong: what says that it goes on from an earlier call has to."""
    return [
        f"call {i} is continued, but from no earlier call"
        for i, call in enumerate(calls)
        if call["branch"] == "continued" and not any(begins(call["prompt"], before["whole"]) for before in calls[:i])
    ]


def begins(prompt: list[int], whole: list[int]) -> bool:
    return bool(whole) and prompt[: len(whole)] == whole


def diff(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The two paths from a little before the first token in which they differ."""
    ours, theirs = before["whole"], after["prompt"]
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    start = max(0, at - TAIL // 3)
    return f"  at token {at}:\n  - {readable(ours[start : start + TAIL])}\n  + {readable(theirs[start : start + TAIL])}"


def readable(token_ids: list[int]) -> str:
    """Bytes as text, control tokens as the template writes them."""
    names = {1: b"<|im_start|>", 2: b"<|im_end|>"}
    return json.dumps(
        b"".join(names.get(i) or bytes([i - 3]) for i in token_ids).decode("utf-8", "replace"), ensure_ascii=False
    )


# --------------------------------------------------------------------------- ids and the client's view


def wrong_ids(calls: list[dict[str, Any]]) -> list[str]:
    """The ids that come back with tool results are those that were given out with the calls."""
    problems: list[str] = []
    for i, (before, after) in enumerate(pairwise(calls), 1):
        came = _RESULT.findall(after["prompt_text"][len(before["prompt_text"]) :])
        if sorted(came) != sorted(before["given_ids"]):
            problems.append(f"call {i} has results for {came}, but the calls were {before['given_ids']}")
    return problems


def wrong_view(case: Case, view: dict[str, Any]) -> list[str]:
    if "error" in view:
        return [f"the program failed: {view['error']}"]
    problems: list[str] = []
    if (view["answer"] or "").strip() != case.answer:
        problems.append(f"the program ends with {view['answer']!r}, not {case.answer!r}")
    seen = sorted(json.dumps(each, sort_keys=True) for each in view["seen"])
    wanted = sorted(json.dumps(list(each), sort_keys=True) for each in case.calls)
    if seen != wanted:
        problems.append(f"the tools were run with\n  + {seen}\n  - {wanted}")
    return problems


def fate(case: Case, calls: list[dict[str, Any]], view: dict[str, Any]) -> str:
    """What the framework did about a call that no tool can be run for."""
    asked_on = len(calls) > 1
    how = (
        ""
        if not asked_on
        else "goes on"
        if all(call["branch"] == "continued" for call in calls[1:])
        else "goes on, changed"
    )
    if "error" in view:
        kind = view["error"].split(":", 1)[0]
        return f"{how}, then raises {kind}" if asked_on else f"raises {kind}"
    if not asked_on:
        return "stops"
    return how if (view["answer"] or "").strip() == case.answer else f"{how}, ends otherwise"
