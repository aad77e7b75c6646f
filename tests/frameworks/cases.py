"""What the model says to every framework, and what an agent that loses nothing makes of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

Called = tuple[str, dict[str, Any]]
"""A tool and the arguments that it has to be run with."""


def call(name: str, arguments: str) -> str:
    """A tool call as the scripted model writes it; ``arguments`` is raw text."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation. ``turns`` are the samples in their order, ``answer`` is what the agent has to end with,
    ``calls`` what its tools have to see.

    ``broken``: the model writes something that no tool can be run with. What a framework does then is its own; all that
    has to hold is that the record stays exact.
    """

    name: str
    turns: tuple[str, ...]
    answer: str
    calls: tuple[Called, ...] = ()
    broken: bool = False

    @property
    def question(self) -> str:
        return f"Case {self.name}. Use the tools, then answer."


CASES = (
    Case(
        "plain",
        (call("calculator", '{"expression": "17 * 23"}'), "It is 391."),
        "It is 391.",
        (("calculator", {"expression": "17 * 23"}),),
    ),
    Case(
        "parallel",
        (
            "Both at once."
            + call("calculator", '{"expression":"1 + 1"}')
            + call("calculator", '{"expression":"2 + 2"}'),
            "And their sum." + call("calculator", '{"expression": "2 + 4"}'),
            "The sum is 6.",
        ),
        "The sum is 6.",
        (
            ("calculator", {"expression": "1 + 1"}),
            ("calculator", {"expression": "2 + 2"}),
            ("calculator", {"expression": "2 + 4"}),
        ),
    ),
    Case(
        "awkward",
        (
            "I note it."
            + call(
                "note",
                r'{ "rows":[[1, 2],[ ], [ -3 ]]  ,"title" : "a  \"b\" \\ \u00e9 \ud83d\ude00 \/ {\"c\": [1,  2]}\n</x> '
                r'<b>&amp;" }',
            ),
            "Noted.",
        ),
        "Noted.",
        (("note", {"rows": [[1, 2], [], [-3]], "title": 'a  "b" \\ é 😀 / {"c": [1,  2]}\n</x> <b>&amp;'}),),
    ),
    Case(
        "unicode",
        (
            "Zürich — 漢字 😀 e\u0301:" + call("note", '{"title": "Zürich — 漢字 😀 e\u0301", "rows": [[0]]}'),
            "Fertig: Zürich — 漢字 😀 e\u0301.",
        ),
        "Fertig: Zürich — 漢字 😀 e\u0301.",
        (("note", {"title": "Zürich — 漢字 😀 e\u0301", "rows": [[0]]}),),
    ),
    Case(
        "reasoning",
        (
            "<think>Two steps.\nFirst the product.</think>I compute." + call("calculator", '{"expression": "17 * 23"}'),
            "<think>Now I know it.</think>It is 391.",
        ),
        "It is 391.",
        (("calculator", {"expression": "17 * 23"}),),
    ),
    Case(
        "bad-json",
        (call("calculator", '{"expression": "17 * 23"'), "I could not compute it."),
        "I could not compute it.",
        broken=True,
    ),
    Case(
        "unknown-tool",
        (call("no_such_tool", '{"x": 1}'), "There is no such tool."),
        "There is no such tool.",
        broken=True,
    ),
)

AFTER = "I have nothing to add."
"""What the model says to anything else: a turn more than a case has, or a question outside of them."""


_OFFERED = re.compile(r"<\|im_start\|>tools\n(\[.*?\])<\|im_end\|>")


def says(prompt: str) -> str:
    """The sample for a decoded prompt of `GlassTemplate`: the case is named in it, the turn is as many as assistant
    turns are there.

    A repeated request so gets the same sample, and one outside any case (a title for the session, say) an answer of its
    own. A tool is called as the framework offers it (some put a prefix before its name), and where it has a tool for
    the final answer, that is called.
    """
    case = next((case for case in CASES if case.question in prompt), None)
    if case is None:
        return AFTER
    turn = prompt[prompt.index(case.question) :].count("<|im_start|>assistant\n") - 1
    if turn >= len(case.turns):
        return AFTER
    text = case.turns[turn]
    offered: list[str] = json.loads(found[1]) if (found := _OFFERED.search(prompt)) else []
    if text.endswith(case.answer) and "final_answer" in offered:
        return text.removesuffix(case.answer) + call(
            "final_answer", json.dumps({"answer": case.answer}, ensure_ascii=False)
        )
    for tool in ("calculator", "note"):
        name = next((name for name in offered if name.endswith(f"__{tool}")), tool)
        text = text.replace(f'"name": "{tool}"', f'"name": "{name}"')
    return text
