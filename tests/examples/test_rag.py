"""The retrieval example: its reward is the F1 of words, its questions can be answered from its corpus alone, and those
held out are about other towns."""

from __future__ import annotations

import ast
import math
import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.imports import ROOT

EXAMPLE = ROOT / "examples" / "rag"


@pytest.fixture(scope="module")
def corpus() -> Any:
    kept = sys.modules.pop("corpus", None)
    sys.path.insert(0, str(EXAMPLE))
    try:
        return __import__("corpus")
    finally:
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop("corpus", None)
        if kept is not None:
            sys.modules["corpus"] = kept


def scoring() -> dict[str, Any]:
    """The example's own functions of words, without the framework that its file imports."""
    source = ast.parse((EXAMPLE / "agent.py").read_text())
    wanted: list[ast.stmt] = [
        node for node in source.body if isinstance(node, ast.FunctionDef) and node.name in ("words", "f1")
    ]
    names: dict[str, Any] = {"re": re}
    exec("from collections import Counter", names)
    exec(compile(ast.Module(wanted, []), "agent.py", "exec"), names)
    return names


def test_the_reward_is_the_f1_of_words():
    f1 = scoring()["f1"]
    assert math.isclose(f1("The river Oda.", "oda"), 2 / 3)
    assert f1("Oda", "Oda") == 1.0 and f1("Wye", "Oda") == f1("", "Oda") == 0.0
    assert math.isclose(f1("Clara Winter founded it", "Clara Winter"), 2 / 3)
    assert math.isclose(f1("Oda Oda Oda", "Oda"), 0.5)


@given(st.text(max_size=40), st.text(max_size=40))
def test_an_f1_lies_between_0_and_1_and_is_1_only_for_the_same_words(said: str, right: str):
    names = scoring()
    value = names["f1"](said, right)
    assert 0.0 <= value <= 1.0
    if names["words"](right):
        assert (value == 1.0) == (sorted(names["words"](said)) == sorted(names["words"](right)))


def test_held_out_questions_are_about_other_towns_and_the_same_ones_for_every_seed(corpus: Any):
    names = [town["town"] for town in corpus.towns()]
    train, val = corpus.questions(seed=0, hops=2)
    assert corpus.questions(seed=1, hops=2)[1] == val and corpus.questions(seed=1, hops=2)[0] != train
    held_out = set(names[-corpus.HELD_OUT :])
    facts = {value for town in corpus.towns() if town["town"] in held_out for value in town.values()}
    about = re.compile(rf"\b({'|'.join(map(re.escape, sorted(facts)))})\b")
    assert not [task for task in train if about.search(task["question"])]
    assert all(about.search(task["question"]) for task in val)


def test_every_answer_stands_in_a_passage_that_the_question_names_and_no_two_towns_share_a_fact(corpus: Any):
    towns, passages = corpus.towns(), corpus.passages()
    for key in ("town", "river", "founder", "year", "goods"):
        assert len({town[key] for town in towns}) == len(towns)
    train, val = corpus.questions()
    for task in train + val:
        name = next(town["town"] for town in towns if town["town"] in task["question"])
        assert any(name in passage and task["answer"] in passage for passage in passages), task
