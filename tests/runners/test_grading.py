"""Graders: in processes of their own where they can be imported again, kept and asked again; in a thread where not, and
then told why."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentlightning import LLM
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode, Reason, Status
from agentlightning.runners import check
from tests.runners import agents, graders
from tests.runners.test_process import ENV, alive

TEXT = {"answer": "x"}


async def graded(world, grader, tasks=(TEXT,), *, isolation="thread", **settings):
    agent = agents.answers if isolation == "thread" else f"{agents.__file__}:answers"
    return await world.run(agent, tasks, isolation=isolation, grader=grader, **settings)


def echoes(task):
    """An agent without a call, for validation."""
    return "x"


@pytest.fixture(params=["zygote", "spawn"])
def launcher(request, monkeypatch):
    if request.param == "spawn":
        monkeypatch.setattr(check.sys, "platform", "other")
    return request.param


@pytest.mark.parametrize("grader", [graders.with_alarm, graders.with_math_verify, graders.is_async])
async def test_a_grader_may_use_signals_and_coroutines(world, isolation, launcher, grader):
    if grader is graders.with_math_verify:
        pytest.importorskip("math_verify")
    rollouts = await graded(world, grader, [TEXT] * 3, isolation=isolation)
    assert [rollout.failure for rollout in rollouts] == [None] * 3
    assert {rollout.reward for rollout in rollouts} == {0.5 if grader is graders.with_alarm else 1.0}


async def test_a_process_is_kept_and_what_it_prints_goes_to_the_attempts_log(world, launcher, capfd):
    rollouts = await graded(world, graders.counts, [TEXT] * 5, n_runners=1)
    assert [rollout.reward for rollout in rollouts] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert not graders.SEEN, "not in this process"
    for i, report in enumerate(world.reports, 1):
        assert report.stdout == f"asked {i} for {report.attempt.id} of {report.rollout.id} Status\n"
    assert "asked" not in capfd.readouterr().out


@pytest.mark.parametrize("n_runners", [1, 4])
async def test_any_end_of_a_graders_process_is_the_failure_of_its_attempt_alone(world, launcher, n_runners):
    says = {
        "os._exit": (Reason.AGENT_ERROR, "the grader's process exited with code 7 before the grader returned"),
        "segfault": (
            Reason.AGENT_ERROR,
            "the grader's process was killed by SIGSEGV; its log shows where before the grader returned",
        ),
        "sys.exit": (Reason.AGENT_ERROR, "the grader raised SystemExit: 3"),
        "nan": (Reason.BAD_REWARD, "the grader's reward is nan"),
        "none": (Reason.BAD_REWARD, "no grader is set and no reward was emitted"),
    }
    tasks = [*says, "stdout", "forks", "fine"]
    rollouts = await world.run(
        echoes, tasks, isolation="thread", mode=Mode.VAL, grader=graders.ends, n_runners=n_runners
    )
    for rollout in rollouts[: len(says)]:
        reason, text = says[rollout.task]
        assert (rollout.failure.reason, text in rollout.failure.message) == (reason, True), rollout.failure
    assert [rollout.reward for rollout in rollouts[len(says) :]] == [0.25] * 3
    printed = {report.rollout.task: report.stdout for report in world.reports}
    assert "Segmentation fault" in printed["segfault"] and all(
        text.startswith(f"grading {task}") for task, text in printed.items()
    )


async def test_a_grader_that_hangs_is_killed_at_the_deadline_and_replaced(world, launcher):
    late, fine = await world.run(
        echoes, ["hangs", "fine"], isolation="thread", mode=Mode.VAL, grader=graders.ends, deadline=1.0, n_runners=1
    )
    assert late.failure.reason is Reason.TIMEOUT
    assert late.failure.message == "the grader did not return within 1 s; its process was killed"
    assert fine.reward == 0.25


async def test_no_process_is_left_once_the_pool_is_closed(world, launcher):
    rollouts = await graded(world, graders.pid, [TEXT] * 3)
    pids = {int(rollout.reward) for rollout in rollouts}
    assert os.getpid() not in pids
    await world.until(lambda: not any(map(alive, pids)))


async def test_an_attempt_that_is_cancelled_while_it_is_graded_ends_its_grader(world):
    runners = world.make_runners(echoes, isolation="thread", grader=graders.ends, lease=0.3)
    await runners.start()
    ids = await world.enqueue(["hangs"], mode=Mode.VAL)
    await world.until(lambda: runners.desk._graders.busy)
    await world.store.cancel(ids, "no longer wanted")
    await world.until(lambda: not runners.desk._graders.busy)
    (rollout,) = await world.wait(ids)
    await runners.close()
    assert rollout.status is Status.CANCELLED


async def test_outputs_that_come_together_are_graded_together(world, tmp_path):
    tasks = [{"answer": "x", "folder": str(tmp_path / "here"), "together": 3}] * 3
    (tmp_path / "here").mkdir()
    rollouts = await graded(world, graders.slow, tasks, n_runners=3, deadline=70)
    assert [rollout.reward for rollout in rollouts] == [3.0] * 3


async def test_what_a_grader_draws_follows_from_the_rollouts_seed(world):
    rollouts = await graded(world, graders.draws, [TEXT] * 4)
    assert len({rollout.reward for rollout in rollouts}) == 4
    assert {rollout.reward for rollout in rollouts} == {
        random.Random((rollout.seed + 1) ^ 0x9E3779B9).random() for rollout in rollouts
    }


async def test_a_grader_has_its_own_key_and_none_of_an_external_models(world, monkeypatch, isolation):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-judge")
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-of-the-judge")
    external = {"judge": LLM(endpoint="http://127.0.0.1:9/v1", model="j", api_key="sk-secret-of-the-judge")}
    (rollout,) = await graded(world, graders.knows_key, isolation=isolation, resources=external)
    assert rollout.reward == 1.0


@pytest.mark.parametrize("grader", [graders.judge, graders.judge.method])
async def test_an_object_of_a_module_grades_in_a_process_as_long_as_it_is_there_as_it_is_here(
    world, monkeypatch, grader
):
    (rollout,) = await graded(world, grader)
    assert rollout.reward != 0.5 + os.getpid()
    monkeypatch.setattr(graders.judge, "bonus", 0.25)
    (rollout,) = await graded(world, grader)
    assert rollout.reward == 0.25 + os.getpid()


async def test_a_grader_that_reads_what_only_this_process_has_runs_here(world, monkeypatch):
    """A wrong reward would be worse than a thread: values that its module reads, also by way of its functions, are
    compared."""
    (rollout,) = await graded(world, graders.reads_limits)
    assert rollout.reward == 3.0
    monkeypatch.setitem(graders.LIMITS, "most", 5)
    runners = world.make_runners(agents.answers, isolation="thread", grader=graders.reads_limits)
    await runners.start()
    (rollout,) = await world.wait(await world.enqueue([TEXT]))
    assert rollout.reward == 5.0
    assert runners.desk._graders.function.why_thread.startswith("it reads LIMITS, which a process that imports ")
    await runners.close()
    with pytest.raises(ConfigError, match="runner.grader='process' cannot hold: it reads LIMITS"):
        await world.make_runners(
            agents.answers, isolation="thread", grader=graders.reads_limits, grader_runs="process"
        ).start()


def closure():
    def grader(task, output, attempt):
        return graders.with_alarm(task, output, attempt)

    return grader


async def test_a_grader_that_has_to_run_in_a_thread_is_told_what_signals_need(world):
    (rollout,) = await graded(world, closure())
    assert rollout.failure.reason is Reason.AGENT_ERROR
    assert rollout.failure.message == (
        "the grader raised ValueError: signal only works in main thread of the main interpreter: one that uses signals "
        "needs a process of its own, "
        "and it is no top-level name of a file (a closure, a lambda, a notebook cell): put it into FILE.py"
    )
    (rollout,) = await graded(world, graders.with_alarm, grader_runs="thread")
    assert rollout.failure.message.endswith("needs a process of its own, and runner.grader is 'thread'")


async def test_what_a_grader_prints_in_a_thread_goes_to_the_attempts_log(world, isolation, capsys):
    def prints(task, output):
        print("from the grader")
        return 1.0

    await graded(world, prints, isolation=isolation)
    assert world.reports[0].stdout.endswith("from the grader\n") and "from the grader" not in capsys.readouterr().out


async def test_an_agent_in_a_thread_that_uses_signals_is_told_of_process_isolation(world):
    def agent(task, llm):
        agents.ask(llm.endpoint)
        return graders.with_alarm(task, None, None)

    (rollout,) = await world.run(agent, isolation="thread")
    assert (
        "an agent that uses signals needs the main thread of a process of its own, isolation='process'"
        in rollout.failure.message
    )


@pytest.mark.parametrize(("guard", "where"), [("if __name__ == '__main__':", "a process"), ("if True:", "a thread")])
def test_a_script_is_imported_again_only_where_that_does_not_start_it_again(tmp_path, guard, where):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys
        from pathlib import Path
        (Path(__file__).parent / f"imported-{os.getpid()}").touch()
        def grader(task, output, attempt):
            return float(os.getpid())
        GUARD
            sys.path.insert(0, REPO)
            import asyncio
            from agentlightning.runners.check import new_launcher
            from agentlightning.runners.grading import Graders
            from agentlightning.runners.output_log import OutputLog
            from agentlightning.nouns import Attempt, Mode, Rollout, Status
            async def main():
                ours = Graders(grader, "auto", 2, ())
                await ours.start(None, new_launcher)
                rollout = Rollout("r", "run", {}, Mode.TRAIN, 1, 0, 7, 0, created_at=0.0)
                attempt = Attempt("r.1", "r", 1, "w", Status.RUNNING, 0.0, 0.0)
                said = await ours.grade(rollout, "x", attempt, OutputLog(), deadline=60, stop=asyncio.Event())
                await ours.close()
                print("a thread" if said == os.getpid() else "a process" if isinstance(said, float) else said)
            asyncio.run(main())
        """)
        .replace("GUARD", guard)
        .replace("REPO", repr(str(Path(__file__).parents[2])))
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=ENV)
    assert done.stdout == f"{where}\n", done.stderr
    assert len(list(tmp_path.glob("imported-*"))) == (2 if where == "a process" else 1)


async def test_a_grader_waits_for_no_more_processes_than_it_may_have(world, monkeypatch):
    monkeypatch.setattr("agentlightning.runners.function_processes.MOST", 1)
    rollouts = await graded(world, graders.pid, [TEXT] * 6, n_runners=6)
    assert len({rollout.reward for rollout in rollouts}) == 1
