"""The werewolf example's rules: no framework is needed for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from examples.werewolf.game import ROLES, Game, listed, named, seats_of_the_other
from examples.werewolf.other import answer, scripted


def game(**more: Any) -> Game:
    return Game(dict(enumerate(ROLES, 1)), list(range(1, 10)), **more)


@given(st.integers())
def test_every_deal_has_all_roles_and_is_that_of_its_seed(seed: int) -> None:
    dealt = Game.dealt(seed)
    assert Counter(dealt.roles.values()) == Counter(ROLES) and dealt == Game.dealt(seed)
    assert len(seats_of_the_other(seed)) == 2 and seats_of_the_other(seed) == seats_of_the_other(seed) <= set(
        range(1, 10)
    )


def test_the_witch_heals_once_and_poisons_once() -> None:
    played = game()
    assert played.night(4, heal=True) == [] and played.night(4, poison=5) == [4, 5]
    with pytest.raises(ValueError, match="heals once"):
        played.night(6, heal=True)
    with pytest.raises(ValueError, match="no poison left"):
        played.night(6, poison=1)
    assert game().night(4, poison=4) == [4] and game().night(None) == []


def test_a_vote_needs_one_with_the_most_and_counts_the_living() -> None:
    played = game()
    played.bury(9)
    assert played.vote({1: 4, 2: 5, 9: 5}) is None and played.vote({}) is None and played.vote({1: 9, 2: 9}) is None
    assert played.vote({1: 4, 2: 4, 3: 5, 4: None}) == 4 and 4 not in played.alive


def test_werewolves_never_point_at_each_other_and_win_at_half() -> None:
    played = game()
    assert played.targets(1) == [4, 5, 6, 7, 8, 9] and played.targets(4) == [1, 2, 3, 5, 6, 7, 8, 9]
    played.bury(4, 5)
    assert played.winner is None
    played.bury(6)
    assert played.winner == "werewolves" and played.side(1) == "werewolves" and played.side(9) == "village"
    played.bury(1, 2, 3)
    assert played.winner == "village"


def test_players_are_named_as_they_are_listed() -> None:
    assert named(f"I suspect {listed([3, 9])}, not Player 100.") == [3, 9] and named("three, or player 4") == []


def test_the_scripted_player_answers_unchanged_clients_with_what_is_allowed() -> None:
    with scripted() as url, OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        said = [
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}]).choices[0]
            for text in ("Vote: who is put out? Answer with one of: Player 4, Player 6.", "Day. Say in one sentence.")
        ]
    assert [named(choice.message.content or "") for choice in said] == [[4], [1]]
    assert answer("Answer with one of: heal, poison, nothing.") == "heal"
