"""What `make test-frameworks` rests on: the judge sees what is wrong, the page says what was measured, and the programs
can be run.

The frameworks themselves are run by `python -m tests.frameworks`; nothing in that folder is collected here.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks import __main__ as driver
from tests.frameworks import compatibility, page
from tests.frameworks.__main__ import House, converse, settled
from tests.frameworks.cases import AFTER, CASES, says
from tests.frameworks.catalog import FRAMEWORKS, Setup
from tests.frameworks.environment import PROGRAMS
from tests.frameworks.judge import Verdict, judge
from tests.gateway.scripted import GlassTemplate

GLASS = GlassTemplate(shows_ids=True)
PLAIN = next(case for case in CASES if case.name == "plain")
BAD = next(case for case in CASES if case.name == "bad-json")
VIEW: dict[str, Any] = {"answer": "It is 391.", "seen": [["calculator", {"expression": "17 * 23"}]]}


NAMING = """
from opentelemetry import trace
import openai

CALLS = ["planner"]

def agent(task, llm):
    with trace.get_tracer("x").start_as_current_span("x", attributes={"agent.name": "planner"}):
        with openai.OpenAI(base_url=llm.endpoint, api_key="k", max_retries=0) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    return 1.0
"""


def call(branch: str, prompt: str, sample: str, *given_ids: str) -> dict[str, Any]:
    ids = GLASS.encode(prompt, start=True).tolist()
    whole = ids + GLASS.encode(sample, start=False).tolist()
    same = {"wire": "chat", "status": "complete", "error": None}
    return {
        **same,
        "branch": branch,
        "prompt": ids,
        "prompt_text": prompt,
        "whole": whole,
        "given_ids": list(given_ids),
    }


def record() -> dict[str, Any]:
    """A plain conversation as it should be recorded."""
    prompt = f"<|im_start|>user\n{PLAIN.question}<|im_end|>\n<|im_start|>assistant\n"
    first = call("root", prompt, PLAIN.turns[0] + "<|im_end|>", "call_1")
    prompt += PLAIN.turns[0] + "<|im_end|>\n<|im_start|>tool\n[call_1]391<|im_end|>\n<|im_start|>assistant\n"
    return {"calls": [first, call("continued", prompt, PLAIN.turns[1] + "<|im_end|>")], "leaves": 1, "incomplete": 0}


def test_a_conversation_that_lost_nothing_is_exact():
    assert judge(PLAIN, "chat", record(), VIEW) == Verdict((), (), (), "exact")


def test_a_prompt_that_lost_a_sampled_token_is_seen_with_the_place():
    wrong = record()
    at = len(wrong["calls"][0]["whole"]) - 20
    del wrong["calls"][1]["prompt"][at]
    [problem] = judge(PLAIN, "chat", wrong, VIEW).tokens
    assert f"at token {at}" in problem


def test_a_branch_a_second_leaf_and_a_lost_call_are_seen():
    wrong = record()
    wrong["calls"][1]["branch"] = "edited"
    wrong["leaves"] = 2
    assert len(judge(PLAIN, "chat", wrong, VIEW).tokens) == 2
    wrong = record()
    del wrong["calls"][1]
    assert judge(PLAIN, "chat", wrong, VIEW).tokens == ("1 calls instead of 2",)
    assert judge(PLAIN, "chat", {**record(), "incomplete": 1}, VIEW).tokens == ("1 calls could not be recorded whole",)


def test_a_call_over_another_api_than_the_page_says_is_seen():
    assert judge(PLAIN, "responses", record(), VIEW).tokens == (
        "call 0 came over chat, not responses",
        "call 1 came over chat, not responses",
    )


def test_a_result_under_another_id_other_arguments_and_another_answer_are_seen():
    wrong = record()
    wrong["calls"][0]["given_ids"] = ["call_2"]
    assert judge(PLAIN, "chat", wrong, VIEW).ids == (
        "call 1 has results for ['call_1'], but the calls were ['call_2']",
    )
    assert len(judge(PLAIN, "chat", record(), {**VIEW, "answer": "It is 390."}).view) == 1
    assert len(judge(PLAIN, "chat", record(), {**VIEW, "seen": []}).view) == 1
    assert judge(PLAIN, "chat", record(), {"error": "ValueError: no", "seen": []}).view == (
        "the program failed: ValueError: no",
    )


def test_what_an_agent_does_about_a_call_that_cannot_be_run_is_told_and_its_record_checked():
    good = record()
    view: dict[str, Any] = {"answer": BAD.answer, "seen": []}
    assert judge(BAD, "chat", good, view) == Verdict((), (), (), "goes on")
    assert (
        judge(BAD, "chat", {**good, "calls": good["calls"][:1]}, {"error": "ValueError: no", "seen": []}).outcome
        == "raises ValueError"
    )
    assert judge(BAD, "chat", {**good, "calls": good["calls"][:1]}, {"answer": "", "seen": []}).outcome == "stops"
    edited = copy.deepcopy(good)
    edited["calls"][1]["branch"] = "edited"
    assert judge(BAD, "chat", edited, view).outcome == "goes on, changed"
    del good["calls"][1]["prompt"][0]
    assert judge(BAD, "chat", good, view).tokens == ("call 1 is continued, but from no earlier call",)


def test_the_script_follows_the_turns_and_the_tools_that_are_offered():
    prompt = f"<|im_start|>user\n{PLAIN.question}<|im_end|>\n<|im_start|>assistant\n"
    assert says(prompt) == PLAIN.turns[0]
    assert says(prompt + "...<|im_end|>\n<|im_start|>assistant\n") == PLAIN.turns[1]
    assert says(prompt + "...<|im_start|>assistant\n...<|im_start|>assistant\n") == says("anything") == AFTER
    assert '"name": "mcp__t__calculator"' in says('<|im_start|>tools\n["mcp__t__calculator"]<|im_end|>\n' + prompt)


def test_a_known_limit_excuses_its_own_case_only_and_must_still_hold():
    exact, wrong = Verdict((), (), (), "exact"), Verdict(("branch",), (), (), "wrong")
    setup = Setup("chat", "chat", "nothing", known={"plain.stream": "it says so"})
    assert settled(setup, {"plain.stream": wrong, "plain.json": exact}) == []
    assert settled(setup, {"plain.json": wrong}) == ["plain.json: branch"]
    assert len(settled(setup, {"plain.stream": exact})) == 1
    assert settled(setup, {"plain.stream": Verdict(("branch",), (), ("no answer",), "wrong")}) == [
        "plain.stream: no answer\n  branch"
    ]


def test_the_page_says_what_was_measured_and_leaves_no_framework_out():
    """`make test-frameworks` writes both; a change of the catalog or the page's text needs it, or `python -m
    tests.frameworks --page`."""
    written = page.PAGE.read_text()
    assert written == page.page(page.read())
    assert [framework.name for framework in FRAMEWORKS if f"| {framework.name} |" not in written] == []
    assert [framework.name for framework in FRAMEWORKS if not (PROGRAMS / framework.program).exists()] == []
    assert [file for each in FRAMEWORKS for file in each.names.values() if not (PROGRAMS / file).is_file()] == []


def test_the_page_of_compatibility_says_what_was_measured() -> None:
    """As above."""
    assert compatibility.PAGE.read_text() == compatibility.page(page.read())


def test_a_program_whose_calls_came_under_other_names_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "PROGRAMS", tmp_path)
    (tmp_path / "names.py").write_text(NAMING)
    found, wrong = driver.name("names.py", sys.executable, loud=False)
    assert found == {"process": True, "thread": True} and wrong == []
    (tmp_path / "names.py").write_text(NAMING.replace('["planner"]', '["critic"]'))
    found, wrong = driver.name("names.py", sys.executable, loud=False)
    assert found == {"process": False, "thread": False} and len(wrong) == 2
    (tmp_path / "names.py").write_text("CALLS = [\"planner\"]\nraise ValueError('no')\n")
    assert driver.name("names.py", sys.executable, loud=False) == ({}, ["names.py: exit code 1"])


def test_a_program_is_run_against_the_gateway_and_judged():
    openai = next(framework for framework in FRAMEWORKS if framework.name == "openai")
    with House() as house:
        verdicts = converse(
            openai, openai.setups[0], [sys.executable, str(PROGRAMS / openai.program)], house, loud=False
        )
    assert {name: verdict.problems for name, verdict in verdicts.items() if verdict.problems} == {}
    assert len(verdicts) == 2 * len(CASES)
