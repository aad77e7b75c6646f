"""What threads promise: nothing of an agent's is mixed with another's or the program's, and what cannot be ended is
abandoned and counted."""

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from agentlightning.nouns import Reason
from tests.runners import agents


async def test_a_blocked_agent_is_abandoned_counted_and_cut_off(world):
    release = threading.Event()
    outcome = []

    def blocked(task, llm):
        release.wait(30)
        try:
            outcome.append(agents.ask(llm.endpoint))
        except OSError as error:
            outcome.append(error.code)
        return 1.0

    runners = world.make_runners(blocked, isolation="thread", deadline=0.3)
    await runners.start()
    (rollout,) = await world.wait(await world.enqueue([{"q": 1}]))
    assert rollout.failure.reason is Reason.TIMEOUT and "its thread was abandoned" in rollout.failure.message
    assert runners.isolation.abandoned == 1
    release.set()
    await world.until(lambda: runners.isolation.abandoned == 0)
    await runners.close()
    assert outcome == [410], "the key of an ended attempt is revoked"
    assert (await world.store.get_rollout(rollout.id)).reward is None


async def test_an_async_agent_past_its_deadline_is_cancelled(world):
    agents.LEFT.clear()
    (rollout,) = await world.run(agents.hangs_async, isolation="thread", deadline=0.3)
    assert rollout.failure.reason is Reason.TIMEOUT
    await world.until(lambda: agents.LEFT == ["cancelled"])


async def test_what_the_program_prints_is_not_taken_for_an_agents(world, capsys):
    def prints(task, llm):
        print("from the agent")
        print("also", file=sys.stderr)
        thread = threading.Thread(target=print, args=("from its thread",))
        thread.start()
        thread.join()
        return agents.plain(task, llm)

    runners = world.make_runners(prints, isolation="thread")
    await runners.start()
    ids = await world.enqueue([{"q": 1}])
    print("from the program")
    await world.wait(ids)
    await runners.close()
    out, err = capsys.readouterr()
    assert "from the program" in out and "from the agent" not in out and "also" not in err
    assert world.reports[0].stdout == "from the agent\nalso\nfrom its thread\n"
    print("afterwards")
    assert "afterwards" in capsys.readouterr().out


async def test_a_stream_that_is_replaced_while_the_pool_runs_does_not_get_what_agents_print(world, monkeypatch):
    def prints(task, llm):
        print("from the agent")
        return agents.plain(task, llm)

    runners = world.make_runners(prints, isolation="thread")
    await runners.start()
    replaced = io.StringIO()
    monkeypatch.setattr(sys, "stdout", replaced)
    await world.wait(await world.enqueue([{"q": 1}]))
    print("from the program")
    await runners.close()
    assert replaced.getvalue() == "from the program\n" and sys.stdout is replaced
    assert world.reports[0].stdout == "from the agent\n"


async def test_an_executor_worker_serves_whoever_submitted_to_it(world):
    """Workers are made by one attempt and used by the program and by others afterwards."""
    shared = ThreadPoolExecutor(1)

    def emits(task, llm):
        agents.ask(llm.endpoint)
        shared.submit(agents.emit_reward, task).result()

    rollouts = await world.run(emits, [0.25, 0.5, 0.75], isolation="thread", n_runners=1)
    assert [rollout.reward for rollout in rollouts] == [0.25, 0.5, 0.75]
    shared.shutdown()


async def test_threads_are_as_they_were_once_no_pool_runs(world):
    start, submit, stdout = threading.Thread.start, ThreadPoolExecutor.submit, sys.stdout
    await world.run(agents.plain, isolation="thread")
    assert (threading.Thread.start, ThreadPoolExecutor.submit, sys.stdout) == (start, submit, stdout)
