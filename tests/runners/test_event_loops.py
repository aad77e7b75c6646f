"""Coroutines of agents in threads: one loop for all, so that they can share what belongs to a loop; and no attempt
waits for ever for another's blocking call."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import aiohttp
import pytest
from openai import AsyncOpenAI

from agentlightning import emit_reward
from agentlightning.nouns import Mode, Reason
from agentlightning.runners import event_loops
from tests.runners import agents
from tests.runners.clients import BODY


@pytest.fixture(autouse=True)
def _a_loop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the process' loop ever connected is what some of these tests are about."""
    monkeypatch.setattr(event_loops, "_shared", event_loops._Shared())


async def ask(client, llm, text="hello"):
    reply = await client.with_options(base_url=llm.endpoint, api_key=llm.api_key).chat.completions.create(
        model="m", messages=[{"role": "user", "content": text}]
    )
    return reply.choices[0].message.content


async def test_attempts_may_share_one_async_client_in_this_run_and_the_next(world):
    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)

    async def agent(task, llm):
        for turn in range(3):
            await ask(client, llm, f"{task} {turn}")
        return 1.0

    world.engine.delay = 0.01
    for _ in range(2):
        rollouts = await world.run(agent, range(24), isolation="thread", n_runners=8)
        assert [rollout.failure for rollout in rollouts] == [None] * 24


async def test_attempts_may_share_a_session_and_a_lock(world):
    shared = {}
    lock = asyncio.Semaphore(2)

    async def agent(task, llm):
        session = (
            shared.setdefault("session", None) or shared.update(session=aiohttp.ClientSession()) or shared["session"]
        )
        async with lock, session.post(f"{llm.endpoint}/chat/completions", json=BODY) as reply:
            return float((await reply.json())["choices"][0]["message"]["content"] == "ok")

    world.engine.delay = 0.01
    rollouts = await world.run(agent, range(12), isolation="thread", n_runners=6)
    assert [rollout.reward for rollout in rollouts] == [1.0] * 12


async def test_the_loop_of_agents_is_neither_the_runs_nor_the_gateways(world):
    seen = set()

    async def agent(task, llm):
        seen.add(asyncio.get_running_loop())
        return 1.0

    await world.run(agent, [1, 2], isolation="thread", mode="val")
    (loop,) = seen
    assert loop is not asyncio.get_running_loop() and loop is not world.gateway._loop


async def test_rewards_marks_and_prints_of_attempts_that_take_turns_stay_their_own(world):
    meet = {}

    async def agent(task, llm, rollout):
        everybody = meet.setdefault("barrier", None) or meet.update(barrier=asyncio.Barrier(3)) or meet["barrier"]
        await asyncio.to_thread(agents.ask, llm.endpoint)
        print("first", task)
        await everybody.wait()
        await asyncio.gather(*(asyncio.create_task(later(task)) for _ in range(2)))
        await asyncio.to_thread(emit_reward, task / 4)
        await everybody.wait()
        print("last", task)

    async def later(task):
        await asyncio.sleep(0)
        print("task", task)

    rollouts = await world.run(agent, [1, 2, 3], isolation="thread", n_runners=3)
    assert [rollout.reward for rollout in rollouts] == [0.25, 0.5, 0.75]
    for report in world.reports:
        task = report.rollout.task
        assert report.stdout == f"first {task}\ntask {task}\ntask {task}\nlast {task}\n"


# --------------------------------------------------------------------------- what blocks


def block():
    time.sleep(2 * event_loops.BLOCKS)


async def test_a_client_that_blocks_inside_a_coroutine_makes_others_wait_once(world):
    together = threading.Barrier(3)

    async def blocks(task, llm):
        if task:
            together.wait(20)  # passes only if all three run at once
        else:
            block()
        return float(agents.ask(llm.endpoint) == "ok")

    runners = world.make_runners(blocks, isolation="thread", n_runners=3)
    await runners.start()
    for tasks in ([0], [1, 2, 3]):
        assert [rollout.reward for rollout in await world.wait(await world.enqueue(tasks))] == [1.0] * len(tasks)
    await runners.close()


async def test_an_agent_that_blocks_and_shares_a_client_goes_on_sharing_it(world):
    client = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    seen = set()

    async def agent(task, llm):
        seen.add(asyncio.get_running_loop())
        await ask(client, llm)
        block()
        await ask(client, llm)
        return 1.0

    rollouts = await world.run(agent, range(6), isolation="thread", n_runners=3)
    assert [rollout.failure for rollout in rollouts] == [None] * 6 and len(seen) == 1


async def test_who_waits_for_a_loop_that_is_blocked_past_the_deadline_gets_another_and_its_whole_time(world):
    release = threading.Event()

    async def agent(task, llm):
        if task == "blocks":
            release.wait(60)
        return float(agents.ask(llm.endpoint) == "ok")

    runners = world.make_runners(agent, isolation="thread", n_runners=2, deadline=0.5)
    await runners.start()
    first = await world.enqueue(["blocks"])
    await world.until(lambda: runners.pool._held)
    late, other = await world.wait([*first, *await world.enqueue(["waits"])])
    assert late.failure.reason is Reason.TIMEOUT and other.reward == 1.0
    assert "the event loop that its attempts share stands still in test_event_loops.py:" in late.failure.message
    assert runners.isolation.abandoned == 1
    release.set()
    await world.until(lambda: runners.isolation.abandoned == 0)
    await runners.close()


async def test_later_attempts_do_not_stand_on_a_loop_that_one_blocks(world):
    release = threading.Event()
    client = {}

    async def agent(task, llm):
        client.setdefault(
            asyncio.get_running_loop(), AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
        )
        await ask(client[asyncio.get_running_loop()], llm)
        if task == "blocks":
            release.wait(60)
        return 1.0

    runners = world.make_runners(agent, isolation="thread", n_runners=1, deadline=1.0)
    await runners.start()
    late, *others = await world.wait(await world.enqueue(["blocks", "a", "b"]))
    assert late.failure.reason is Reason.TIMEOUT and [rollout.reward for rollout in others] == [1.0, 1.0]
    assert len(client) == 2, "both on the loop that took the other's place"
    release.set()
    await runners.close()


async def test_a_sync_agent_may_run_loops_of_its_own(world):
    async def inner(llm):
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=0) as client:
            return await ask(client, llm)

    rollouts = await world.run(
        lambda task, llm: float(asyncio.run(inner(llm)) == "ok"), range(6), isolation="thread", n_runners=3
    )
    assert [rollout.reward for rollout in rollouts] == [1.0] * 6


# --------------------------------------------------------------------------- what is left behind


async def leaves_clients_and_tasks(task, llm):
    client, session = AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=0), aiohttp.ClientSession()
    await ask(client, llm)
    async with session.post(f"{llm.endpoint}/chat/completions", json=BODY) as reply:
        await reply.read()

    async def fails():
        raise ValueError("nobody awaits this")

    async def exits():
        raise SystemExit(3)

    made = [asyncio.create_task(what) for what in (fails(), asyncio.sleep(3600))]
    await asyncio.sleep(0)
    if task == "exits":
        made.append(asyncio.create_task(exits()))
        await asyncio.sleep(0)
    return 1.0


def leaves_them_to_a_closed_loop(task, llm):
    kept = []

    async def main():
        client = AsyncOpenAI(base_url=llm.endpoint, api_key="x", max_retries=0)
        kept.append(client)
        kept.append(aiohttp.ClientSession())
        await ask(client, llm)

    asyncio.run(main())
    return 1.0


@pytest.mark.parametrize("agent", [leaves_clients_and_tasks, leaves_them_to_a_closed_loop])
async def test_nothing_is_said_to_the_user_of_clients_and_loops_that_nobody_closed(world, agent, capfd):
    rollouts = await world.run(agent, ["a", "exits", "b", "c"], isolation="thread", n_runners=1)
    assert [rollout.failure for rollout in rollouts] == [None] * 4
    for _ in range(5):
        gc.collect()
        await asyncio.sleep(0.01)
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


async def test_what_an_attempt_left_on_the_loop_ends_with_its_pool(world):
    left = []

    async def agent(task, llm):
        left.append(asyncio.create_task(asyncio.sleep(3600)))
        return 1.0

    await world.run(agent, isolation="thread", mode=Mode.VAL)
    await world.until(left[0].cancelled)
