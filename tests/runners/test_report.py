"""The rules of ruling 8 on values, and the log."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentlightning.agent import rollouts as views
from agentlightning.nouns import Attempt, Failure, Mode, Reason, Reward, Rollout, Status
from agentlightning.records.usage import AttemptUsage, EngineUse, ExternalUsage
from agentlightning.runners.assignment import Assignment, Endpoint
from agentlightning.runners.environment import KEPT_BACK, inherited_environment
from agentlightning.runners.execution import Returned, result_from_json, result_to_json, returned
from agentlightning.runners.output import as_json
from agentlightning.runners.output_log import LOG_BYTES, TAIL_BYTES, OutputLog
from agentlightning.runners.report import Facts, decide_outcome, needs_grader
from agentlightning.store.rows import dump


def Usage(calls: int = 1, **more: Any) -> AttemptUsage:
    return AttemptUsage(calls, **more)


def rollout(mode=Mode.TRAIN):
    return Rollout("r", "run", {"q": 1}, mode, 0, 0, 1, 1)


ATTEMPT = Attempt("r.1", "r", 1, "runner", Status.RUNNING, 0.0, 0.0)
ERROR = Failure(Reason.AGENT_ERROR, "ValueError: x", "Traceback")
LATE = Failure(Reason.TIMEOUT, "late")
TROUBLE = ExternalUsage(3, failed=1, trouble="external model 'judge' is down")


def emitted(value, name="reward", **where):
    return Reward("r", "r.1", value, name, **where)


def decide(ran, usage=None, mode=Mode.TRAIN, **more):
    failure_reward = more.pop("failure_reward", None)
    return decide_outcome(rollout(mode), ATTEMPT, Facts(ran, usage or Usage(), **more), failure_reward=failure_reward)


@pytest.mark.parametrize(
    ("ran", "more", "reward", "source"),
    [
        (Returned(0.5), {"emitted": [emitted(1.0)], "graded": 0.1}, 0.5, "return"),
        (Returned(output="x", not_number="no number"), {"emitted": [emitted(1.0)], "graded": 0.25}, 0.25, "grader"),
        (Returned(), {"emitted": [emitted(1.0), emitted(0.5), emitted(9.0, "style")]}, 0.5, None),
        (Returned(), {"emitted": [emitted(1.0), emitted(0.5, call_id="c")]}, 1.0, None),
        (Returned(), {"emitted": [emitted(1.0, agent="a"), emitted(0.5, call_id="c")]}, 0.5, None),
        (Returned(output={"a": 1}, not_number="no number"), {"emitted": [emitted(0.5)]}, 0.5, None),
        (Returned(0.0), {}, 0.0, "return"),
    ],
)
def test_a_returned_number_then_a_grader_then_the_last_emitted_reward(ran, more, reward, source):
    result = decide(ran, **more)
    assert (result.status, result.reward, result.failure) == (Status.SUCCEEDED, reward, None)
    assert [given.source for given in result.rewards] == ([source] if source else [])


@pytest.mark.parametrize(
    ("ran", "usage", "more", "reason", "says"),
    [
        (Returned(), Usage(), {}, Reason.EMPTY, "returned no reward, emitted none, and no grader is set"),
        (Returned(), Usage(), {"emitted": [emitted(1.0, "style")]}, Reason.EMPTY, "returned no reward"),
        (
            Returned(output="x", not_number="'x' is no number"),
            Usage(),
            {},
            Reason.BAD_REWARD,
            "'x' is no number; no grader",
        ),
        (Returned(1.0), Usage(calls=0), {}, Reason.EMPTY, "no call reached the endpoint"),
        (
            Returned(1.0),
            Usage(2, refused=2, last_error="bad"),
            {},
            Reason.EMPTY,
            "every call to the endpoint was refused (2), the last one with: bad",
        ),
        (
            Returned(1.0),
            Usage(0, unserved={"responses": "set it to chat"}),
            {},
            Reason.EMPTY,
            "asked for responses, and was told: set it to chat",
        ),
        (Returned(1.0), Usage(2, abandoned=2), {}, Reason.EMPTY, "read no reply to the end"),
        (
            Returned(1.0),
            Usage(2, incomplete=1, last_error="disk"),
            {},
            Reason.INCOMPLETE,
            "1 of its 2 calls could not be recorded whole: disk",
        ),
        (ERROR, Usage(2, incomplete=1, last_error="disk"), {}, Reason.INCOMPLETE, "disk"),
        (ERROR, Usage(2, refused=1, context_length_errors=1), {}, Reason.CONTEXT_LENGTH, "and then: ValueError: x"),
        (ERROR, Usage(0), {}, Reason.AGENT_ERROR, "ValueError"),
        (
            ERROR,
            Usage(2, external={"judge": TROUBLE}),
            {},
            Reason.EXTERNAL,
            "external model 'judge' is down; and then: ValueError: x",
        ),
        (ERROR, Usage(2, external={"judge": ExternalUsage(3, failed=1)}), {}, Reason.AGENT_ERROR, "ValueError"),
        (ERROR, Usage(2, external={"judge": ExternalUsage(3, left=1)}), {}, Reason.AGENT_ERROR, "ValueError"),
        (ERROR, Usage(2, incomplete=1, external={"judge": TROUBLE}), {}, Reason.INCOMPLETE, ""),
        (LATE, Usage(2, external={"judge": TROUBLE}), {}, Reason.EXTERNAL, "is down; and then: late"),
        (
            LATE,
            Usage(2, external={"judge": ExternalUsage(1, left=1)}),
            {},
            Reason.EXTERNAL,
            "'judge' had not answered; and then: late",
        ),
        (
            Returned(1.0),
            Usage(0, external={"judge": ExternalUsage(3)}),
            {},
            Reason.EMPTY,
            r"all were to external models (judge)",
        ),
        (Failure(Reason.TIMEOUT, "late"), Usage(2, refused=1, context_length_errors=1), {}, Reason.TIMEOUT, "late"),
        (
            Returned(),
            Usage(),
            {"graded": Failure(Reason.BAD_REWARD, "the grader's reward is nan")},
            Reason.BAD_REWARD,
            "grader",
        ),
    ],
)
def test_every_failure_has_its_reason_in_words(ran, usage, more, reason, says):
    result = decide(ran, usage, **more)
    assert result.status is Status.FAILED and result.reward is None and result.rewards == ()
    assert result.failure.reason is reason and says in result.failure.message


def test_a_traceback_stays_with_its_failure():
    for usage in (Usage(), Usage(2, incomplete=1), Usage(2, context_length_errors=1)):
        assert decide(ERROR, usage).failure.traceback == "Traceback"


def test_outside_training_an_agent_without_calls_may_score():
    for mode in (Mode.VAL, Mode.DEV):
        assert decide(Returned(1.0), Usage(calls=0), mode).reward == 1.0


@given(
    st.sampled_from([reason for reason in Reason if reason not in (Reason.INCOMPLETE, Reason.LOST, Reason.CANCELLED)]),
    st.dictionaries(st.sampled_from(list(Reason)), st.floats(-1, 1), max_size=4),
)
def test_a_failure_is_scored_only_where_its_reason_is_named(reason, failure_reward):
    result = decide(Failure(reason, "x"), failure_reward=failure_reward)
    assert result.status is Status.FAILED and result.failure.reason is reason
    assert result.reward == failure_reward.get(reason)
    assert [given.source for given in result.rewards] == (["failure_reward"] if reason in failure_reward else [])


def test_a_grader_is_asked_only_where_it_can_decide():
    assert needs_grader(Returned(output="x"), rollout(), Usage()) and needs_grader(Returned(), rollout(), Usage())
    assert not needs_grader(Returned(1.0), rollout(), Usage())
    assert not needs_grader(ERROR, rollout(), Usage())
    assert not needs_grader(Returned(), rollout(), Usage(calls=0))
    assert needs_grader(Returned(), rollout(Mode.VAL), Usage(calls=0))
    assert not needs_grader(Returned(), rollout(Mode.VAL), Usage(incomplete=1))


# --------------------------------------------------------------------------- what an agent returned


class Model(BaseModel):
    text: str


class Word(str):
    __slots__ = ()


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@dataclass
class Answer:
    text: str
    parts: tuple[int, ...]


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        ("text", "text"),
        ((1, (2, 3)), [1, [2, 3]]),
        (Answer("a", (1,)), {"text": "a", "parts": [1]}),
        ({"m": Model(text="a")}, {"m": {"text": "a"}}),
        (float, {"repr": "<class 'float'>", "type": "type", "note": "not JSON"}),
        ({1: 2}, {"repr": "{1: 2}", "type": "dict", "note": "not JSON"}),
        ([float("nan")], {"repr": "[nan]", "type": "list", "note": "not JSON"}),
        ({"n": 2**64}, {"repr": "{'n': 18446744073709551616}", "type": "dict", "note": "not JSON"}),
        ([2**64 - 1, -(2**63)], [2**64 - 1, -(2**63)]),
        ({"a\ud800": ["\udc00é"]}, {"a\\ud800": ["\\udc00é"]}),
        (nested(128), nested(128)),
        (nested(129), {"repr": "[" * 129 + "]" * 129, "type": "list", "note": "not JSON"}),
        ({Word("k"): [numpy.float64(0.5), Word("v")]}, {"k": [0.5, "v"]}),
    ],
)
def test_an_output_is_recorded_as_json_or_as_its_text(value, recorded):
    assert as_json(value) == recorded
    assert orjson.loads(orjson.dumps(as_json(value))) == recorded


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=[])), inner),
        max_leaves=8,
    )
)
def test_whatever_an_agent_returns_can_be_recorded(value):
    assert orjson.loads(dump(as_json(value), "an output")) == as_json(value)


def test_an_output_that_holds_itself_is_recorded_as_its_text():
    loop: list[Any] = []
    loop.append(loop)
    assert as_json(loop)["note"].startswith("not JSON")


def test_an_empty_list_is_no_reward_rather_than_a_bad_one():
    assert returned([]) == Returned(output=[])


@given(
    st.one_of(
        st.builds(Returned, st.none() | st.floats(allow_nan=False), st.text()),
        st.builds(Failure, st.sampled_from(list(Reason)), st.text(), st.text()),
    )
)
def test_what_came_of_an_attempt_survives_the_way_between_processes(ran):
    assert result_from_json(result_to_json(ran)) == ran


def test_an_assignment_survives_the_way_between_processes():
    import json

    from agentlightning.agent.resources import ExternalLLM, NamedResources, PromptTemplate

    resources = NamedResources(judge=ExternalLLM(model="j"), p=PromptTemplate("{q}"), n=1)
    of_attempt = {"mode": Mode.TRAIN, "attempt": views.Attempt(attempt_id="r.1")}
    view = views.Rollout(rollout_id="r", input={"q": 1}, **of_attempt, group=2, index=3, seed=4)
    endpoint = Endpoint("/a/key", "key", "m", "http://b")
    assignment = Assignment(view, endpoint, {"temperature": 1.0}, resources, seconds_left=7.5, lease_seconds=2.0)
    assert Assignment.from_json(json.loads(json.dumps(assignment.to_json()))) == assignment


def test_an_agents_process_inherits_no_key_of_an_external_model(monkeypatch):
    monkeypatch.setenv("JUDGE", '{"key": "sk-0123456789abcdef"}')
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    monkeypatch.setenv("WORD", "EMPTY")
    inherited = inherited_environment(["sk-0123456789abcdef", "EMPTY"])
    assert inherited["JUDGE"] == KEPT_BACK and inherited["WORD"] == "EMPTY" and "OPENAI_API_KEY" not in inherited
    assert inherited_environment()["JUDGE"] == '{"key": "sk-0123456789abcdef"}'


# --------------------------------------------------------------------------- the log


@given(st.lists(st.binary(max_size=50_000), max_size=8))
def test_the_log_keeps_the_last_64_kilobytes(chunks):
    log = OutputLog()
    for chunk in chunks:
        log.write(chunk)
    assert log.text() == b"".join(chunks)[-TAIL_BYTES:].decode("utf-8", "replace")


def test_the_logs_file_has_a_limit_and_says_so(tmp_path):
    log = OutputLog(tmp_path / "deep" / "a.log")
    for _ in range(20):
        log.write(b"x" * (1 << 20))
    log.close()
    log.write(b"too late")
    data = (tmp_path / "deep" / "a.log").read_bytes()
    assert len(data) < LOG_BYTES + 200 and data.endswith(b"at most 16 MB]\n") and data.count(b"log ends here") == 1


def test_a_log_whose_file_cannot_be_written_goes_on_without_it(tmp_path):
    (tmp_path / "taken").write_text("")
    log = OutputLog(tmp_path / "taken" / "a.log")
    log.write(b"hello\n")
    log.write(b"again\n")
    assert log.text().startswith("hello\n") and "could not be written" in log.text() and log.text().endswith("again\n")


def test_an_attempt_that_prints_nothing_leaves_no_file(tmp_path):
    OutputLog(tmp_path / "a.log").close()
    assert list(tmp_path.iterdir()) == []


def test_many_threads_may_write_one_log():
    log = OutputLog()
    threads = [threading.Thread(target=lambda: [log.write(b"line\n") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.text() == "line\n" * 800


def test_a_timeout_whose_time_went_into_the_engine_says_so_with_its_speed():
    def after(seconds: float, **more: Any) -> str:
        failure = decide(LATE, Usage(engine=EngineUse(180, seconds=seconds, lasted=60.0, **more))).failure
        assert failure is not None and failure.reason is Reason.TIMEOUT
        return failure.message

    remedy = "use fewer n_runners, a smaller sampling.max_tokens, or a higher runner.deadline"
    spent = "late: 57.6 s of its 60.0 s the engine had its calls, queued or sampled (180 tokens, 3.1 tokens/s"
    assert after(57.6) == f"{spent}); {remedy}"
    assert after(57.6, cut=2) == f"{spent}, and 2 requests not sampled to the end); {remedy}"
    assert after(29.0, cut=1) == "late"  # most of it was the agent's own
    assert (
        decide(LATE, Usage(external={"judge": TROUBLE}, engine=EngineUse(1, seconds=50.0, lasted=60.0))).failure.reason
        is Reason.EXTERNAL
    )


def test_time_in_the_engine_is_counted_once_where_calls_are_parallel(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr("agentlightning.records.usage.time.monotonic", lambda: now)
    use = EngineUse()
    first, second = use.waited_for(), use.waited_for()
    first.__enter__()
    now = 101.0
    second.__enter__()
    now = 103.0
    first.__exit__(None, None, None)
    now = 104.0
    use.note_end()
    second.__exit__(None, None, None)
    assert (use.seconds, use.cut, use.lasted) == (4.0, 1, 4.0)
