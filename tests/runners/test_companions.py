"""A program's tracer and hooks go along with every attempt where its agent runs, in threads and in processes; what
goes wrong with them is one line, and never the end of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentlightning.agent.loading import find_source
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode, Reason, Status
from agentlightning.runners import thread
from agentlightning.runners.companions import Companions, Once
from tests.runners import accompanied
from tests.runners.accompanied import Broken, BrokenHook, HandsOver, Hook, NoContext, Notes, Own, Plain, Slow


def either(isolation: str, name: str) -> Any:
    return getattr(accompanied, name) if isolation == "thread" else f"{accompanied.__name__}:{name}"


ORDER = [
    "init",
    "init_worker 0 None",
    "rollout_start train outside",
    "enter True ['attempt_id', 'rollout_id']",
    "trace_start inside True",
    "trace_end inside",
    "leave",
    "rollout_end ['agent', 'rollout', 'runner', 'task', 'tracer']",
    "teardown_worker 0",
    "teardown",
]


@pytest.mark.parametrize("agent", ["inside", "inside_async"])
async def test_a_tracer_and_hooks_are_called_around_an_attempt_in_order_and_in_its_context(
    world: Any, isolation: str, agent: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    companions = Companions(Own(notes), (Hook(notes),))
    rollout, _ = await world.one(either(isolation, agent), isolation=isolation, companions=companions)
    assert (rollout.status, rollout.reward) == (Status.SUCCEEDED, 1.0), "the agent runs within the tracer's context"
    assert notes.read_text().splitlines() == ORDER
    assert world.runners.said == []


async def test_a_tracer_begins_once_in_each_process_that_runs_agents(
    world: Any, isolation: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    done = await world.run(
        either(isolation, "inside"), [{"q": 1}] * 3, isolation=isolation, companions=Companions(Own(notes)), n_runners=1
    )
    assert [rollout.reward for rollout in done] == [1.0] * 3
    lines = notes.read_text().splitlines()
    processes = 1 if isolation == "thread" else 3
    assert lines.count("init") == lines.count("teardown") == lines.count("teardown_worker 0") == processes
    assert sum(line.startswith("enter") for line in lines) == 3


async def test_processes_that_run_at_the_same_time_have_different_worker_ids(world: Any, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    world.engine.delay = 1.0
    await world.run(
        either("process", "inside"), [{"q": 1}] * 3, isolation="process", companions=Companions(Own(notes)), n_runners=3
    )
    begun = [line for line in notes.read_text().splitlines() if line.startswith("init_worker")]
    assert sorted(begun) == [f"init_worker {number} None" for number in range(3)]


async def test_a_tracer_that_is_no_subclass_and_is_entered_by_with_is_enough(
    world: Any, isolation: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    rollout, _ = await world.one(
        either(isolation, "inside_async"), isolation=isolation, companions=Companions(Plain(notes))
    )
    assert rollout.reward == 1.0 and notes.read_text().split() == ["enter", "leave"]


async def test_companions_hear_of_the_end_also_where_the_agent_fails(
    world: Any, isolation: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    companions = Companions(Own(notes), (Hook(notes),))
    rollout, report = await world.one(either(isolation, "fails"), isolation=isolation, companions=companions)
    assert rollout.status is Status.FAILED and report.result.failure.reason is Reason.AGENT_ERROR
    assert report.result.failure.message.startswith("ValueError: the agent's own (accompanied.py:")
    said = notes.read_text().splitlines()
    assert said[-5:-2] == ["trace_end inside", "leave the agent's own", ORDER[-3]]


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.VAL, Mode.DEV])
async def test_an_agent_knows_who_runs_it_in_every_mode(world: Any, isolation: str, mode: Mode) -> None:
    own, _ = await world.one(
        either(isolation, "told"), isolation=isolation, mode=mode, companions=Companions(NoContext())
    )
    plain, report = await world.one(either(isolation, "told"), isolation=isolation, mode=mode)
    assert report.result.output == {"tracer": "Tracer", "handler": None, "runner": [0, True]}
    assert own.status is plain.status is Status.FAILED
    assert (
        "trace_context: TypeError: it returned str, which is no context manager"
        in world.reports[0].result.failure.message
    )


@pytest.mark.parametrize("where", ["init", "init_worker", "trace_context"])
async def test_a_tracer_that_does_not_begin_fails_its_attempts_and_not_the_run(
    world: Any, isolation: str, where: str
) -> None:
    done = await world.run(
        either(isolation, "inside"), [{"q": 1}] * 2, isolation=isolation, companions=Companions(Broken(where))
    )
    assert [rollout.status for rollout in done] == [Status.FAILED] * 2
    for report in world.reports:
        failure = report.result.failure
        assert failure.reason is Reason.AGENT_ERROR
        assert re.fullmatch(
            rf"the tracer Broken failed in {where}: ValueError: no \(accompanied\.py:\d+\)", failure.message
        )
        assert "raise self.error" in failure.traceback and report.usage.calls == 0


@pytest.mark.parametrize("where", ["leaving", "teardown_worker", "teardown"])
async def test_what_fails_at_a_tracers_end_is_said_once_and_changes_no_result(
    world: Any, isolation: str, where: str
) -> None:
    done = await world.run(
        either(isolation, "inside_async"), [{"q": 1}] * 3, isolation=isolation, companions=Companions(Broken(where))
    )
    assert [rollout.status for rollout in done] == [Status.SUCCEEDED] * 3
    (said,) = world.runners.said
    method, ends = ("trace_context", "; the attempt goes on") if where == "leaving" else (where, "")
    assert re.fullmatch(rf"the tracer Broken failed in {method}: ValueError: no \(accompanied\.py:\d+\){ends}", said)


async def test_a_run_waits_for_what_a_tracer_hands_over_at_its_end(world: Any, isolation: str, tmp_path: Path) -> None:
    companions = Companions(HandsOver(tmp_path / "notes"))
    await world.one(either(isolation, "inside"), isolation=isolation, companions=companions)
    assert (tmp_path / "notes").read_text() == "handed over\n"


@pytest.mark.parametrize("where", ["on_rollout_start", "on_trace_end"])
@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)], ids=lambda each: type(each).__name__)
async def test_a_hook_that_fails_is_said_once_and_its_attempts_go_on(
    world: Any, isolation: str, where: str, error: BaseException
) -> None:
    companions = Companions(hooks=(BrokenHook(where, error),))
    done = await world.run(either(isolation, "inside"), [{"q": 1}] * 3, isolation=isolation, companions=companions)
    assert [(rollout.status, rollout.reward) for rollout in done] == [(Status.SUCCEEDED, 0.0)] * 3
    (said,) = world.runners.said
    assert re.fullmatch(
        rf"the hook BrokenHook failed in {where}: {type(error).__name__}: .+ \(accompanied\.py:\d+\); the attempt goes on",
        said,
    )
    assert all("raise self.error" in report.stdout for report in world.reports), "where, in the attempt's log"


async def test_a_tracer_that_begins_for_ever_has_a_deadline(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "COMPANY_TIMEOUT", 0.2)
    _, report = await world.one(accompanied.inside, isolation="thread", companions=Companions(Slow()))
    assert report.result.failure.message == "the tracer did not begin within 0.2 s"
    _, report = await world.one(
        either("process", "inside"), isolation="process", companions=Companions(Slow()), deadline=2.0
    )
    assert report.result.failure.reason is Reason.TIMEOUT


async def test_an_agents_process_has_what_it_may_know_of_its_trainer(world: Any) -> None:
    _, report = await world.one(
        either("process", "knows_trainer"), isolation="process", companions=Companions(agent_match="write")
    )
    said = report.result.output
    assert (said["match"], said["same"]) == ("write", True)
    assert said["fits"].startswith("trainer.fit is not there: the Trainer is in another process")


# --------------------------------------------------------------------------- made again in a process


def test_a_companion_travels_by_its_name_or_by_its_class_and_state(tmp_path: Path) -> None:
    sent = Companions(accompanied.at_top, (Hook(tmp_path),), "write").to_json()
    back = Companions.from_json(sent)
    assert back.tracer is accompanied.at_top and back.agent_match == "write"
    assert type(back.hooks[0]) is Hook and back.hooks[0].file == tmp_path
    assert find_source(accompanied.at_top) is not None


def test_a_name_that_only_the_started_program_has_is_made_from_its_class(tmp_path: Path) -> None:
    accompanied.made_in_main = Own(tmp_path)  # type: ignore[attr-defined]  # as under `if __name__ == "__main__"`
    sent = Companions(accompanied.made_in_main).to_json()  # type: ignore[attr-defined]
    del accompanied.made_in_main  # type: ignore[attr-defined]
    assert Companions.from_json(sent).tracer.file == tmp_path


def test_companions_that_cannot_be_made_again_are_refused_by_name(tmp_path: Path) -> None:
    class Local(Notes):
        pass

    for companions, what in (
        (Companions(Local(tmp_path)), "the tracer Local"),
        (Companions(hooks=(Hook(lambda: None),)), "the hook Hook"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=rf"^{what} cannot be made again in the agents' processes"):
            companions.to_json()


def test_each_line_is_said_once_and_a_hundred_at_most() -> None:
    said: list[str] = []
    once = Once(said.append)
    for number in range(300):
        once(f"line {number % 150}")
    assert said == [f"line {number}" for number in range(100)]
