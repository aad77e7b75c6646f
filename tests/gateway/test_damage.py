"""Random conversations over real templates under what clients do to them. benchmarks/continuation.py runs a thousand of
them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from agentlightning.gateway.tree import TraceTree
from tests.gateway.conftest import House
from tests.gateway.damage import DAMAGE, HARMLESS, Talk

FAMILIES = [("hermes_tags", True), ("llama3", True), ("smol", False)]


@pytest.mark.parametrize(("family", "tools"), FAMILIES)
def test_a_spliced_path_is_what_the_client_sent_whatever_it_did(family: str, tools: bool) -> None:
    branches: Counter[str] = Counter()
    for number in range(25):
        for turn in Talk(family, random.Random(f"{family} {number}"), tools).play(7, list(DAMAGE)):
            assert turn.wrong is None, (number, turn.damage, turn.wrong)
            branches[turn.branch] += 1
    assert branches["continued"] > 20 and branches["edited"] > 5


@pytest.mark.parametrize(("family", "tools"), FAMILIES)
def test_exact_tokens_go_on_under_everything_that_changes_no_meaning(family: str, tools: bool) -> None:
    for number in range(25):
        played = Talk(family, random.Random(f"harmless {family} {number}"), tools).play(7, sorted(HARMLESS))
        asked = [turn for turn in played if not turn.again]
        assert [turn.branch for turn in asked] == ["root", *["continued"] * 6], (number, played)
        assert [turn.spliced for turn in asked] == list(range(7))
        assert all(turn.branch == "forked" for turn in played if turn.again)


@pytest.mark.parametrize(("family", "tools"), FAMILIES)
@pytest.mark.parametrize("damage", ["sliding window", "turns left out", "compacted"])
def test_a_history_that_lost_turns_is_a_branch_with_that_reason(damage: str, family: str, tools: bool) -> None:
    """`new` where all that is left of it is a summary."""
    branches: Counter[str] = Counter()
    for number in range(12):
        for turn in Talk(family, random.Random(f"{damage} {number}"), tools).play(9, ["none", "none", damage])[1:]:
            assert turn.wrong is None, (number, turn.wrong)
            assert turn.damage == damage or turn.branch == "continued"
            branches[turn.branch] += 1
    assert branches["compacted"] + branches["new"] > 10
    assert branches["compacted"] > 10 or damage == "compacted"
    # A summary that is left out once more is an edit: no turn is gone.
    assert branches.keys() <= {"continued", "compacted", "forked", "new" if damage == "compacted" else "edited"}, (
        branches
    )


def test_what_is_no_compaction_is_never_called_one() -> None:
    kept = [
        name
        for name in DAMAGE
        if name not in ("sliding window", "turns left out", "compacted", "handoff", "old turn replayed", "sub-agent")
    ]
    for number in range(25):
        for turn in Talk("hermes_tags", random.Random(f"kept {number}")).play(7, kept):
            assert turn.branch != "compacted", (number, turn)


@pytest.mark.parametrize(("family", "tools"), FAMILIES)
def test_the_reason_of_a_branch_is_a_label_and_changes_no_token(
    family: str, tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompts() -> list[list[int]]:
        told: list[list[int]] = []
        ask = Talk.ask

        def kept(self: Talk, history: list[Any], samples: int = 1) -> Any:
            placement, reply = ask(self, history, samples)
            told.append(placement.prompt_ids.tolist())
            return placement, reply

        with monkeypatch.context() as patch:
            patch.setattr(Talk, "ask", kept)
            for number in range(8):
                Talk(family, random.Random(f"label {number}"), tools).play(7, list(DAMAGE))
        return told

    as_it_is = prompts()
    for label in (True, False):
        monkeypatch.setattr(TraceTree, "_compacted", lambda *_, label=label: label)
        assert prompts() == as_it_is


async def test_a_client_with_a_sliding_window_sees_its_reason_in_the_record(house: House) -> None:
    house.engine.script = [f"answer {turn}" for turn in range(6)]
    visit = await house.open()
    history: list[dict[str, Any]] = []
    for turn in range(6):
        history.append({"role": "user", "content": f"question {turn}"})
        reply = await visit.ask([{"role": "system", "content": "Be brief."}, *history[-5:]])
        history.append({"role": "assistant", "content": reply.choices[0].message.content})
    branches = [call.branch for call in await visit.calls()]
    assert branches == ["root", "continued", "continued", "compacted", "compacted", "compacted"]


@pytest.mark.parametrize("damage", ["argument edited", "text edited", "calls dropped"])
def test_an_edited_turn_is_never_spliced(damage: str) -> None:
    edited = 0
    for number in range(25):
        for turn in Talk("hermes_tags", random.Random(f"{damage} {number}")).play(5, [damage]):
            assert turn.wrong is None, (number, turn.wrong)
            edited += turn.branch == "edited"
    assert edited > 10
