"""The stored form of credit: it says what it was given, to the bit, and refuses what it can't read."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.records.credit import AttemptCredit, CreditUnreadable, MaskedRun, NodeCredit, join

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKEN = st.one_of(FLOAT32, st.sampled_from(["forced", "stale", "failed: timeout", "größer"]))


def node_of(id: int, tokens: list[float | str]) -> NodeCredit:
    """From a weight or a reason for each token."""
    masked = [MaskedRun(t, 1, token) for t, token in enumerate(tokens) if isinstance(token, str)]
    return NodeCredit.of(id, len(tokens), [token for token in tokens if not isinstance(token, str)], masked)


def said(node: NodeCredit) -> list[float | str]:
    reasons = {run.start + i: run.reason for run in node.masked for i in range(run.count)}
    return [reasons.get(t, weight) for t, weight in enumerate(node.per_token())]


NODE = st.lists(TOKEN, max_size=12) | st.builds(lambda token, count: [token] * count, TOKEN, st.integers(0, 400))


@given(st.lists(NODE, max_size=5))
def test_what_is_stored_reads_as_it_was_written_for_every_token(nodes: list[list[float | str]]):
    credit = AttemptCredit(tuple(node_of(3 * i, tokens) for i, tokens in enumerate(nodes)))
    again = AttemptCredit.decode(credit.encode())
    assert again == credit
    for tokens, node in zip(nodes, again.nodes, strict=True):
        for token, kept in zip(tokens, said(node), strict=True):
            if isinstance(token, str):
                assert kept == token
            else:
                assert array("f", [token]).tobytes() == array("f", [float(kept)]).tobytes()
        assert [math.isnan(w) for w in node.per_token()] == [isinstance(token, str) for token in tokens]


def test_weights_that_differ_in_a_bit_are_kept_apart():
    node = AttemptCredit.decode(AttemptCredit((node_of(0, [0.0, -0.0]),)).encode()).nodes[0]
    assert [math.copysign(1, weight) for weight in node.per_token()] == [1, -1]


@given(st.lists(NODE, max_size=5))
def test_trained_and_masked_add_up_to_what_was_sampled(nodes: list[list[float | str]]):
    """Invariant 3."""
    credit = AttemptCredit(tuple(node_of(i, tokens) for i, tokens in enumerate(nodes)))
    assert credit.sampled == sum(map(len, nodes)) == credit.trained + sum(credit.masked.values())


def test_a_node_of_one_weight_costs_one_float_and_one_of_several_a_float_for_each_token():
    empty = len(AttemptCredit(()).encode())
    one, many = (
        len(AttemptCredit((node_of(0, tokens),)).encode()) - empty for tokens in ([0.5] * 100, [0.5, 1.0] * 50)
    )
    assert (one, many) == (4 + 4, 4 + 400)


def test_the_form_in_the_store_stays_what_it_is():
    credit = AttemptCredit((node_of(1, [0.5, "forced", 0.5]), node_of(300, ["stale"] * 200)))
    stored = "010206666f72636564057374616c650201030101" + "0000003f" + "010100" + "ac02c8010001" + "00c80101"
    assert credit.encode().hex() == stored


def test_touching_runs_of_one_reason_are_one_run():
    node = node_of(0, ["forced", "forced", "stale", 1.0])
    assert node.masked == (MaskedRun(0, 2, "forced"), MaskedRun(2, 1, "stale")) and node.why is None
    assert node_of(0, ["stale"] * 3).why == "stale" and node_of(0, []).why is None


@pytest.mark.parametrize(
    ("weights", "masked", "message"),
    [
        ([1.0, 2.0], [], "3 trained tokens and 2 weights"),
        ([], [MaskedRun(0, 2, "x")], "1 trained tokens and 0 weights"),
        ([1.0], [MaskedRun(0, 3, "x")], "0 trained tokens and 1 weights"),
        ([1.0], [MaskedRun(0, 4, "x")], "can not have"),
        ([1.0], [MaskedRun(1, 1, "x"), MaskedRun(0, 1, "x")], "can not have"),
        ([math.nan], [], "not a finite number"),
    ],
)
def test_a_node_whose_tokens_do_not_add_up_cannot_be_made(weights: list[float], masked: list[MaskedRun], message: str):
    with pytest.raises(ValueError, match=message):
        NodeCredit.of(0, 3, weights, masked)


def test_what_cannot_be_read_is_refused_in_one_line():
    stored = AttemptCredit((node_of(1, [0.5, "forced"]),)).encode()
    with pytest.raises(CreditUnreadable, match="form 9, and this version reads form 1"):
        AttemptCredit.decode(b"\x09" + stored[1:])
    with pytest.raises(CreditUnreadable, match="no form"):
        AttemptCredit.decode(b"")
    with pytest.raises(CreditUnreadable, match="damaged: a part without nodes follows"):
        AttemptCredit.decode(stored + b"\0")


@given(st.integers(1, 60))
def test_stored_credit_that_was_cut_short_is_never_read_as_whole(cut: int):
    stored = AttemptCredit((node_of(1, [0.5, "forced", 1.5]), node_of(2, ["stale"] * 9))).encode()
    with pytest.raises(CreditUnreadable):
        AttemptCredit.decode(stored[: -min(cut, len(stored) - 1)])


def test_the_parts_of_an_attempts_policies_are_its_whole_credit():
    one, two = node_of(1, [0.5]), node_of(4, ["stale"])
    assert join([AttemptCredit((two,)), AttemptCredit((one,))]) == AttemptCredit((one, two))
