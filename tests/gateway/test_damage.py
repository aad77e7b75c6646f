"""Random conversations over real templates under what clients do to them. benchmarks/continuation.py runs a thousand of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

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
        assert [turn.branch for turn in played] == ["root", *["continued"] * 6], (number, played)
        assert [turn.spliced for turn in played] == list(range(7))


@pytest.mark.parametrize("damage", ["argument edited", "text edited", "calls dropped"])
def test_an_edited_turn_is_never_spliced(damage: str) -> None:
    edited = 0
    for number in range(25):
        for turn in Talk("hermes_tags", random.Random(f"{damage} {number}")).play(5, [damage]):
            assert turn.wrong is None, (number, turn.wrong)
            edited += turn.branch == "edited"
    assert edited > 10
