import decimal
import fractions
import http.server
import json
import math
import os
import subprocess
import sys
import threading
from typing import ClassVar

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.agent.rewards import check_reward, current_endpoint, emit_reward
from agentlightning.errors import AgentLightningError, RewardError
from agentlightning.nouns import MAX_REWARD


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (-0.5, -0.5),
        (True, 1.0),
        (False, 0.0),
        (fractions.Fraction(1, 4), 0.25),
        (numpy.float32(0.5), 0.5),
        (numpy.float64(0.5), 0.5),
        (numpy.int8(3), 3.0),
        (numpy.bool_(True), 1.0),
    ],
)
def test_numbers_and_truth_values_are_rewards(value, number):
    checked = check_reward(value)
    assert type(checked) is float and checked == number


class Odd:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), r"reward is nan \(float\): a reward has to be finite"),
        (-math.inf, r"reward is -inf \(float\)"),
        (numpy.float32("nan"), r"reward is nan \(float32\)"),
        ("1.0", r"reward is '1\.0' \(str\), not a number"),
        (None, r"reward is None \(NoneType\), not a number"),
        (numpy.ones(1), r"\(ndarray\), not a number: .*\.item\(\)"),
        (numpy.array(1.0), r"\(ndarray\), not a number"),
        ([1.0], r"\(list\), not a number"),
        (1j, r"\(complex\), not a number"),
        (decimal.Decimal(1), r"\(Decimal\), not a number"),
        (10**400, r"no float"),
        (1e308, r"reward is 1e\+308 \(float\): a reward has to be within -1e\+09 and 1e\+09; scale it"),
        (-2e9, r"reward is -2e\+09 \(float\)"),
        (Odd(), r"\(Odd\), not a number"),
        ("x" * 1000, r"\.\.\. \(str\)"),
    ],
)
def test_what_is_no_finite_number_is_refused_with_value_and_type(value, says):
    with pytest.raises(RewardError, match=says) as caught:
        check_reward(value)
    assert len(str(caught.value)) < 250


@given(st.one_of(st.floats(-MAX_REWARD, MAX_REWARD), st.integers(-(10**9), 10**9), st.booleans()))
def test_every_number_that_is_taken_keeps_its_value(value):
    assert check_reward(value) == value


class Endpoint(http.server.BaseHTTPRequestHandler):
    taken: ClassVar[list] = []
    answer = (200, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Endpoint.taken.append((self.path, body))
        self.send_response(self.answer[0])
        self.end_headers()
        self.wfile.write(self.answer[1])

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    Endpoint.taken = []
    Endpoint.answer = (200, b"{}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    yield f"http://127.0.0.1:{server.server_port}/a/key"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reward_outside_any_attempt_is_a_clear_error(monkeypatch):
    monkeypatch.delenv("AGENTLIGHTNING_ENDPOINT", raising=False)
    with pytest.raises(RewardError, match="outside any attempt"):
        emit_reward(1.0)


def test_the_attempt_is_found_by_context_first_and_then_by_environment(endpoint, monkeypatch):
    monkeypatch.setenv("AGENTLIGHTNING_ENDPOINT", endpoint + "/environment")
    emit_reward(True)
    token = current_endpoint.set(endpoint + "/context")
    emit_reward(0.5, name="style", call_id="c1", agent="a", reason="r")
    current_endpoint.reset(token)
    assert Endpoint.taken == [
        (
            "/a/key/environment/rewards",
            {"value": 1.0, "name": "reward", "call_id": None, "agent": None, "reason": None},
        ),
        ("/a/key/context/rewards", {"value": 0.5, "name": "style", "call_id": "c1", "agent": "a", "reason": "r"}),
    ]


def test_a_child_process_finds_the_attempt_in_its_environment(endpoint):
    code = "from agentlightning import emit_reward; emit_reward(2)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "AGENTLIGHTNING_ENDPOINT": endpoint}, check=True)
    assert [body["value"] for _, body in Endpoint.taken] == [2.0]


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ((422, b'{"error": {"message": "call_id is no call"}}'), RewardError, "refused: call_id is no call$"),
        ((410, b"gone"), RewardError, "after its attempt had ended.*gone"),
        ((500, b'{"detail": "disk full"}'), AgentLightningError, "HTTP 500: disk full"),
    ],
)
def test_a_refused_reward_is_an_error_with_the_endpoints_words(endpoint, answer, error, says):
    Endpoint.answer = answer
    current_endpoint.set(endpoint)
    with pytest.raises(error, match=says):
        emit_reward(1)
    current_endpoint.set(None)


def test_a_value_that_is_no_reward_is_never_sent(endpoint):
    current_endpoint.set(endpoint)
    with pytest.raises(RewardError, match=r"emit_reward: 'reward' is nan"):
        emit_reward(float("nan"))
    current_endpoint.set(None)
    assert Endpoint.taken == []


def test_an_endpoint_that_is_gone_is_an_error_of_one_line(monkeypatch):
    monkeypatch.setenv("AGENTLIGHTNING_ENDPOINT", "http://127.0.0.1:9/a/key")
    with pytest.raises(AgentLightningError, match=r"not accepted.*refused"):
        emit_reward(1)


def test_a_reply_in_the_place_of_its_id_is_refused_by_name() -> None:
    with pytest.raises(RewardError, match=r"emit_reward\(call_id=object\): expected text: the reply's id"):
        emit_reward(1.0, call_id=object())  # pyright: ignore[reportArgumentType]
