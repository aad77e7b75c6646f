"""What comes of an attempt, in threads and in processes, with the real store and gateway."""

import asyncio
import threading
from pathlib import Path

import pytest

from agentlightning import LLM, NamedResources, PromptTemplate
from agentlightning.errors import ConfigError, StoreError
from agentlightning.nouns import Mode, Reason, Status
from agentlightning.runners.check import check_agent
from tests.runners import agents

FILE = Path(agents.__file__)


def path(agent) -> str:
    return f"{FILE}:{agent.__name__}"


# --------------------------------------------------------------------------- success


@pytest.mark.parametrize(
    "agent", [agents.plain, agents.coroutine, agents.decorated], ids=["plain", "async", "decorated"]
)
async def test_a_plain_and_an_async_agent_are_run_and_scored(world, isolation, agent):
    rollout, report = await world.one(agent, isolation=isolation)
    assert (rollout.status, rollout.reward, rollout.failure) == (Status.SUCCEEDED, 1.0, None)
    assert report.usage.calls == 1 and report.usage.sampled_tokens == 3 and not report.retried
    (reward,) = await world.store.rewards(rollout.id)
    assert (reward.value, reward.source, reward.attempt_id) == (1.0, "return", rollout.attempt_id)


async def test_a_class_has_its_own_methods_for_training_and_validation(world, isolation):
    (trained,) = await world.run(agents.classy, isolation=isolation)
    (validated,) = await world.run(agents.classy, isolation=isolation, mode=Mode.VAL)
    assert (trained.reward, validated.reward) == (1.0, 0.5)


async def test_n_runners_attempts_run_at_once_and_no_more(world, isolation):
    world.engine.delay = 0.3
    rollouts = await world.run(agents.plain, [{"q": i} for i in range(9)], isolation=isolation, n_runners=3)
    assert [rollout.reward for rollout in rollouts] == [1.0] * 9
    assert world.engine.most == 3


async def test_an_agent_is_handed_what_it_asks_for_by_name(world, isolation):
    resources = NamedResources(
        judge=LLM(endpoint="http://judge/v1", model="j", api_key="secret", sampling_parameters={"top_p": 0.5}),
        main_llm=LLM(sampling_parameters={"stop": ["x"]}),
        prompt_template=PromptTemplate("old {question}"),
        limit=3,
    )
    version = await world.store.put_resources("run", {"prompt_template": {"template": "new {question}"}})
    seen = {}

    def grade(task, output, attempt):
        seen.update(output, task=task, attempt_of_grader=attempt.id)
        return 1

    rollout, _ = await world.one(
        agents.shows_handed, isolation=isolation, resources=resources, version=version, grader=grade
    )
    assert rollout.reward == 1.0
    assert seen["rollout"] == rollout.id and seen["attempt"] == seen["attempt_of_grader"] == rollout.attempt_id
    assert seen["mode"] == "train" and seen["text"] == "new why" and seen["value"] == 3
    assert seen["names"] == ["judge", "limit", "main_llm", "prompt_template"]
    assert seen["judge"] == [True, True, "judge", {"top_p": 0.5}], (
        "the attempt's endpoint and key, and the name that the gateway knows it by"
    )
    assert seen["main"] == [True, {"temperature": 1.0, "stop": ["x"]}] and seen["model"] == "main"
    assert seen["task"] == {"q": 1}, "an agent that changes its task changes only its own copy"
    stored = await world.store.get_attempt(rollout.attempt_id)
    assert "secret" not in repr(await world.store.get_resources("run")) and stored.output["value"] == 3


# --------------------------------------------------------------------------- rewards (ruling 8)


async def test_the_last_emitted_reward_counts_where_nothing_else_scores(world, isolation):
    rollout, _ = await world.one(agents.emits, isolation=isolation)
    assert rollout.reward == 0.5
    recorded = await world.store.rewards(rollout.id)
    assert [(r.value, r.name, r.source) for r in recorded] == [
        (0.25, "reward", "emit"),
        (0.125, "style", "emit"),
        (0.5, "reward", "emit"),
    ]


async def test_a_returned_number_is_final(world, isolation):
    rollout, _ = await world.one(agents.emits_and_returns, isolation=isolation, grader=lambda task, output: 0.1)
    assert rollout.reward == 0.75


async def test_a_grader_scores_before_what_was_emitted(world):
    async def grade(task, output, attempt):
        await asyncio.sleep(0)
        return True

    rollout, _ = await world.one(agents.emits, isolation="thread", grader=grade)
    assert rollout.reward == 1.0
    assert [r.source for r in await world.store.rewards(rollout.id)] == ["emit", "emit", "emit", "grader"]


async def test_a_grader_that_says_none_leaves_it_to_what_was_emitted(world):
    rollout, _ = await world.one(agents.emits, isolation="thread", grader=lambda task, output, attempt: None)
    assert rollout.reward == 0.5


async def test_threads_and_executors_of_an_agent_emit_to_their_own_attempt(world, isolation):
    tasks = [{"reward": i / 8} for i in range(8)]
    for agent in (agents.emits_in_thread, agents.emits_in_shared_executor):
        rollouts = await world.run(agent, tasks, isolation=isolation)
        assert [rollout.reward for rollout in rollouts] == [i / 8 for i in range(8)]


async def test_a_coroutine_and_a_forked_child_emit(world, isolation):
    for agent in (agents.emits_async, agents.emits_in_forked_process):
        rollout, _ = await world.one(agent, isolation=isolation)
        assert rollout.reward == 0.5


async def test_a_child_process_emits_through_its_environment(world):
    rollout, _ = await world.one(agents.emits_in_child_process, isolation="process")
    assert rollout.reward == 0.5


@pytest.mark.parametrize("kind", ["int", "true", "numpy", "numpy_int", "numpy_bool"])
async def test_numbers_and_truth_values_of_python_and_numpy_are_rewards(world, kind):
    rollout, _ = await world.one(agents.returns_good, tasks=[kind], isolation="thread")
    assert rollout.reward == 1.0


async def test_what_is_no_reward_fails_the_attempt_as_bad_reward(world, isolation):
    says = {
        "nan": "the returned reward is nan (float): a reward has to be finite",
        "inf": "the returned reward is -inf (float)",
        "text": "the returned value is '1.0' (str), not a number; no grader is set and no reward was emitted",
        "array": "(ndarray), not a number: take the one number out of it, with .item()",
        "huge": "no float",
        "large": "the returned reward is 1e+308 (float): a reward has to be within -1e+09 and 1e+09",
    }
    for rollout in await world.run(agents.returns_bad, list(says), isolation=isolation):
        assert rollout.status is Status.FAILED and rollout.reward is None
        assert rollout.failure.reason is Reason.BAD_REWARD and says[rollout.task] in rollout.failure.message


async def test_a_nan_that_is_emitted_is_a_bad_reward_too(world, isolation):
    rollout, _ = await world.one(agents.emits_nan, isolation=isolation)
    assert rollout.failure.reason is Reason.BAD_REWARD and "emit_reward: 'reward' is nan" in rollout.failure.message
    assert "emits_nan" in rollout.failure.traceback


async def test_no_reward_of_any_kind_is_empty(world, isolation):
    rollout, _ = await world.one(agents.answers, isolation=isolation)
    assert rollout.failure.reason is Reason.EMPTY and "returned no reward, emitted none" in rollout.failure.message


async def test_an_output_that_is_no_json_is_recorded_as_its_text(world, isolation):
    seen = []
    rollout, _ = await world.one(
        agents.returns_unprintable, isolation=isolation, grader=lambda task, output: seen.append(output) or 1
    )
    assert seen[0]["type"] == "Unprintable" and "cannot be shown" in seen[0]["note"]
    assert (await world.store.get_attempt(rollout.attempt_id)).output == seen[0]


# --------------------------------------------------------------------------- the grader's failures


def raises(task, output, attempt):
    raise KeyError("no such answer")


async def never(task, output, attempt):
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    ("grader", "reason", "says"),
    [
        (raises, Reason.AGENT_ERROR, "the grader raised KeyError"),
        (lambda task, output, attempt: "good", Reason.BAD_REWARD, "the grader's reward is 'good'"),
        (never, Reason.TIMEOUT, "the grader did not return within 2 s"),
    ],
)
async def test_a_failing_grader_fails_the_attempt_and_says_grader(world, grader, reason, says):
    rollout, _ = await world.one(agents.answers, isolation="thread", grader=grader, deadline=2.0)
    assert rollout.failure.reason is reason and says in rollout.failure.message
    assert rollout.status is Status.FAILED and rollout.reward is None


@pytest.mark.parametrize("grader", [42, lambda: 1, lambda task, output, attempt, more: 1])
async def test_a_grader_that_cannot_be_called_is_refused_at_once(world, grader):
    with pytest.raises(ConfigError, match="grader"):
        world.make_runners(agents.plain, grader=grader)


# --------------------------------------------------------------------------- failures (the bad-input table)


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (agents.raises, r"ValueError: the database is on fire (agents.py:"),
        (agents.exits, "the agent called sys.exit(3)"),
        (agents.interrupts, "KeyboardInterrupt"),
    ],
    ids=["raises", "exits", "interrupts"],
)
async def test_what_an_agent_raises_fails_its_attempt_alone(world, isolation, agent, says):
    rollout, _ = await world.one(agent, isolation=isolation)
    assert rollout.status is Status.FAILED and rollout.reward is None
    assert rollout.failure.reason is Reason.AGENT_ERROR and says in rollout.failure.message
    lines = rollout.failure.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and f"in {agent.__name__}" in lines[1], (
        "it begins in the user's code"
    )


async def test_an_agent_that_hangs_is_ended_at_its_deadline_and_its_key_is_revoked(world, isolation):
    rollout, report = await world.one(agents.hangs, isolation=isolation, deadline=1.0)  # it would hang for an hour
    assert rollout.failure.reason is Reason.TIMEOUT and "did not return within 1 s" in rollout.failure.message
    assert report.seconds >= 1.0


async def test_an_agent_that_never_calls_is_empty_in_training_and_scored_in_validation(world, isolation):
    (trained,) = await world.run(agents.never_calls, isolation=isolation)
    (validated,) = await world.run(agents.never_calls, isolation=isolation, mode=Mode.VAL)
    assert trained.failure.reason is Reason.EMPTY and "no call reached the endpoint" in trained.failure.message
    assert validated.reward == 1.0


async def test_an_agent_whose_path_is_not_served_is_empty_and_says_the_path(world):
    rollout, _ = await world.one(agents.other_path, isolation="thread")
    assert rollout.failure.reason is Reason.EMPTY and "asked for nonsense" in rollout.failure.message


async def test_ten_megabytes_of_output_neither_block_nor_are_kept(world, isolation):
    rollout, report = await world.one(agents.prints_much, isolation=isolation)
    assert rollout.reward == 1.0
    assert len(report.stdout) <= 64 * 1024 and report.stdout.endswith("the last line\n")
    log = world.folder / "logs" / f"{rollout.attempt_id}.log"
    assert 10_000_000 < log.stat().st_size < 10_100_000


async def test_what_one_attempt_prints_is_in_its_own_log_alone(world, isolation, capsys):
    def own(task, llm):
        raise AssertionError

    await world.run(agents.prints_much, [{"q": 1}, {"q": 2}], isolation=isolation)
    assert "x" * 100 not in capsys.readouterr().out
    assert all(report.stdout.count("the last line") == 1 for report in world.reports)


async def test_threads_and_tasks_that_an_agent_leaves_behind_are_nobodys_harm(world, isolation):
    for agent in (agents.leaves_threads, agents.leaves_tasks):  # for ten minutes
        rollout, _ = await world.one(agent, isolation=isolation)
        assert rollout.reward == 1.0


async def test_a_hundred_calls_at_once_are_all_answered(world, isolation):
    rollout, report = await world.one(agents.hundred_calls, isolation=isolation)
    assert rollout.reward == 1.0 and report.usage.calls == 100


async def test_a_prompt_that_is_too_long_fails_as_context_length_unless_the_agent_recovers(world, isolation):
    failed, _ = await world.one(agents.too_long, isolation=isolation)
    recovered, _ = await world.one(agents.too_long_but_recovers, isolation=isolation)
    assert failed.failure.reason is Reason.CONTEXT_LENGTH and "HTTPError" in failed.failure.message
    assert recovered.reward == 1.0


# --------------------------------------------------------------------------- what a failure is worth


async def test_a_failed_attempt_has_no_reward_unless_its_reason_is_named(world):
    (masked,) = await world.run(agents.raises, isolation="thread", failure_reward={"timeout": -1.0})
    (scored,) = await world.run(agents.raises, isolation="thread", failure_reward={"agent_error": -1.0})
    assert masked.reward is None and await world.store.rewards(masked.id) == []
    assert scored.status is Status.FAILED and scored.reward == -1.0
    (reward,) = await world.store.rewards(scored.id)
    assert (reward.source, reward.reason) == ("failure_reward", "agent_error")


@pytest.mark.parametrize("reason", ["incomplete", "lost", "cancelled"])
async def test_a_failure_that_says_nothing_about_the_policy_cannot_be_scored(world, reason):
    with pytest.raises(ConfigError, match=f"failure_reward.{reason}"):
        world.make_runners(agents.plain, failure_reward={reason: -1.0})


async def test_an_attempt_that_could_not_be_recorded_whole_is_incomplete_and_never_scored(world, monkeypatch):
    async def full(*_):
        raise StoreError("the disk is full")

    monkeypatch.setattr(world.store, "record", full)
    rollout, _ = await world.one(agents.plain, isolation="thread", failure_reward={"agent_error": -1.0})
    assert rollout.failure.reason is Reason.INCOMPLETE and "the disk is full" in rollout.failure.message
    assert rollout.reward is None


# --------------------------------------------------------------------------- retries, leases, ends


def flaky(task, llm, rollout):
    reward = agents.plain(task, llm)
    if rollout.attempt.sequence_id < 3:
        raise ValueError(f"try {rollout.attempt.sequence_id}")
    return reward


async def test_a_retried_attempt_is_a_new_attempt_with_a_new_key(world, isolation):
    (rollout,) = await world.run(flaky, isolation=isolation, max_attempts=3)
    attempts = await world.store.attempts(rollout.id)
    assert rollout.reward == 1.0 and rollout.attempt_id == attempts[2].id
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert [attempt.status for attempt in attempts] == [Status.FAILED, Status.FAILED, Status.SUCCEEDED]
    assert [report.retried for report in world.reports] == [True, True, False]
    assert attempts[0].failure.message.startswith("ValueError: try 1")
    assert [len(await world.store.calls(attempt.id)) for attempt in attempts] == [1, 1, 1]


async def test_only_the_last_attempt_of_a_rollout_gets_a_failure_reward(world):
    (rollout,) = await world.run(
        agents.raises, isolation="thread", max_attempts=2, failure_reward={"agent_error": -1.0}
    )
    assert len(await world.store.attempts(rollout.id)) == 2
    assert rollout.reward == -1.0 and len(await world.store.rewards(rollout.id)) == 1


async def test_a_cancelled_rollout_is_ended_and_reports_nothing(world, isolation):
    runners = world.make_runners(agents.hangs, isolation=isolation, lease=1.0)
    await runners.start()
    ids = await world.enqueue([{"q": 1}])
    await world.until(lambda: world.engine.seen)
    assert runners.desk.holds(ids) and not runners.desk.holds(["another"])
    await world.store.cancel(ids, "quorum met")
    await world.until(lambda: not runners.desk.holds(ids))
    (rollout,) = await world.wait(ids)
    await runners.close()
    assert rollout.status is Status.CANCELLED and world.reports == []


async def test_a_long_attempt_keeps_its_lease(world, monkeypatch):
    monkeypatch.setattr("agentlightning.runners.pool.HEARTBEAT", 0.05)
    renew, renewed, enough = world.store.renew, [], threading.Event()

    async def noting(attempt_id, *, seconds):
        kept = await renew(attempt_id, seconds=seconds)
        renewed.append(kept)
        if len(renewed) == 3:
            enough.set()
        return kept

    monkeypatch.setattr(world.store, "renew", noting)

    def agent(task, llm):
        assert enough.wait(60), "it was not renewed while it ran"
        return agents.plain(task, llm)

    (rollout,) = await world.run(agent, isolation="thread", lease=30.0, deadline=90.0)
    assert rollout.reward == 1.0 and rollout.attempt_id.endswith(".1") and renewed[:3] == [True] * 3


async def test_the_lease_of_a_runner_that_died_expires_and_its_rollout_runs_again(world):
    ids = await world.enqueue([{"q": 1}])
    assert len(await world.store.lease("run", "dead-runner", limit=1, seconds=0.2)) == 1
    runners = world.make_runners(agents.plain, isolation="thread", lease=0.3, max_attempts=2)
    await runners.start()
    (rollout,) = await world.wait(ids)
    await runners.close()
    first, second = await world.store.attempts(rollout.id)
    assert first.failure.reason is Reason.LOST and second.status is Status.SUCCEEDED and rollout.reward == 1.0


async def test_closing_ends_what_runs_and_queues_it_again_so_that_a_resumed_run_runs_it(world, isolation):
    runners = world.make_runners(agents.hangs, isolation=isolation)
    await runners.start()
    ids = await world.enqueue([{"q": 1}])
    await world.until(lambda: world.engine.seen)
    async with asyncio.timeout(60):  # the agent would hang for an hour
        await runners.close()
    rollout = await world.store.get_rollout(ids[0])
    (attempt,) = await world.store.attempts(ids[0])
    assert rollout.status is Status.QUEUED and rollout.failure is None
    assert attempt.failure.reason is Reason.CANCELLED
    again = world.make_runners(agents.plain, isolation=isolation)
    await again.start()
    (rollout,) = await world.wait(ids)
    await again.close()
    assert rollout.reward == 1.0 and rollout.attempt_id.endswith(".2")


async def test_a_store_that_fails_ends_the_pool_by_name(world, monkeypatch):
    async def full(*_):
        raise StoreError("the disk is full")

    runners = world.make_runners(agents.plain, isolation="thread")
    await runners.start()
    monkeypatch.setattr(world.store, "finish", full)
    with pytest.raises(StoreError, match="the disk is full"):
        await world.wait(await world.enqueue([{"q": 1}]))
    await runners.close()


# --------------------------------------------------------------------------- checked at start


async def test_an_agent_that_needs_a_template_is_refused_before_anything_runs(world, isolation):
    runners = world.make_runners(agents.shows_handed, isolation=isolation)
    with pytest.raises(ConfigError, match="takes prompt_template and the run's resources hold none"):
        await runners.start()
    await world.store.put_resources("run", {"prompt_template": {"template": "{question}"}})
    runners = world.make_runners(agents.shows_handed, isolation=isolation)
    await runners.start()
    await runners.close()


async def test_a_closure_under_process_isolation_is_refused_with_what_to_do(world):
    def inner(task):
        return 1

    runners = world.make_runners(inner, isolation="process")
    with pytest.raises(ConfigError, match=r"isolation='process'.*closure.*'FILE.py:name'"):
        await runners.start()


async def test_auto_isolation_is_process_for_a_path_and_thread_for_an_object(world):
    assert (await check_agent(world.make_runners(path(agents.plain)).agent)).isolation == "process"
    assert (await check_agent(world.make_runners(agents.plain).agent)).isolation == "thread"


async def test_environment_that_cannot_be_set_is_refused_by_name(world):
    with pytest.raises(ConfigError, match="extra_env sets TOKEN, and isolation='thread' has no environment"):
        await world.make_runners(agents.plain, isolation="thread", extra_env={"TOKEN": "x"}).start()
    with pytest.raises(ConfigError, match="extra_env sets OPENAI_BASE_URL, which the runner sets"):
        await world.make_runners(agents.plain, isolation="process", extra_env={"OPENAI_BASE_URL": "x"}).start()


async def test_a_script_without_a_main_guard_does_not_start_a_run_inside_a_run(world, monkeypatch):
    monkeypatch.setenv("AGENTLIGHTNING_IN_AGENT", "1")
    with pytest.raises(ConfigError, match="__name__ == '__main__'"):
        await world.make_runners(agents.plain).start()


async def test_a_resource_that_is_none_is_refused_by_name(world):
    with pytest.raises(ConfigError, match=r"resources\['thing'\] is an object"):
        world.make_runners(agents.plain, resources={"thing": object()})
