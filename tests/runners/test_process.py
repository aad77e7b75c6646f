"""What only processes can do: an environment per attempt, killing with all children, surviving any end of an agent's
process."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from agentlightning.agent.calling import as_agent
from agentlightning.errors import AgentLightningError, ConfigError
from agentlightning.nouns import Reason, RunRecord, RunStatus, Status
from agentlightning.runners import check, process
from agentlightning.runners.check import check_agent
from agentlightning.runners.spawn import Spawn
from tests.runners import agents

FILE = Path(agents.__file__)
ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and prctl")


def path(agent) -> str:
    return f"{FILE}:{agent.__name__}"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(params=["zygote", "spawn"])
def launcher(request, monkeypatch):
    """Both ways to start processes; `spawn` is what other systems get."""
    if request.param == "spawn":
        monkeypatch.setattr(check.sys, "platform", "other")
    return request.param


# --------------------------------------------------------------------------- environment


async def test_each_attempt_has_its_endpoint_in_its_environment_under_every_name(world, launcher, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.example/v1")
    seen = []
    tasks = [{"q": 1}, {"q": 2}]
    await world.run(
        path(agents.shows_environment),
        tasks,
        extra_env={"TOKEN": "t"},
        grader=lambda task, output: seen.append(output) or 1.0,
    )
    first, second = sorted(seen, key=lambda env: env["AGENTLIGHTNING_ATTEMPT"])
    for env in (first, second):
        root = env["AGENTLIGHTNING_ENDPOINT"]
        assert root.startswith(world.gateway.url)
        assert env["OPENAI_BASE_URL"] == env["OPENAI_API_BASE"] == f"{root}/v1"
        assert env["ANTHROPIC_BASE_URL"] == env["GOOGLE_GEMINI_BASE_URL"] == root
        assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == env["GEMINI_API_KEY"] and root.endswith(
            env["OPENAI_API_KEY"]
        )
        assert env["TOKEN"] == "t" and env["HTTP_PROXY"] == "http://proxy.example:1"
        assert (
            "127.0.0.1" in env["NO_PROXY"]
            and env["OPENAI_AGENTS_DISABLE_TRACING"] == env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
        )
        assert env["LANGCHAIN_OPENAI_STREAM_CHUNK_TIMEOUT_S"] == "0", "a queue may be longer than its two minutes"
    assert first["OPENAI_API_KEY"] != second["OPENAI_API_KEY"]


async def test_a_base_url_that_is_read_when_the_module_is_imported_is_the_attempts(world, launcher):
    rollouts = await world.run(path(agents.from_import_time), [{"q": i} for i in range(3)])
    assert [rollout.reward for rollout in rollouts] == [1.0] * 3
    assert [report.usage.calls for report in world.reports] == [1, 1, 1]


async def test_an_official_client_that_is_made_at_import_reaches_the_endpoint(world, tmp_path):
    file = tmp_path / "with_client.py"
    file.write_text(
        textwrap.dedent("""
        import openai
        client = openai.OpenAI()
        def agent(task):
            reply = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
            return reply.choices[0].message.content == "ok"
        """)
    )
    probe = await check_agent(as_agent(f"{file}:agent"))
    assert "openai" in probe.modules and "with_client" not in probe.modules
    (client,) = probe.clients
    assert (client.name, client.kind, client.base_url) == ("client", "openai.OpenAI", check.PLACEHOLDER + "/v1/")
    rollouts = await world.run(f"{file}:agent", [{"q": i} for i in range(4)])
    assert [rollout.reward for rollout in rollouts] == [1.0] * 4


@linux
async def test_a_library_is_imported_once_and_the_users_module_in_every_attempt(world, tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("import os\nPID = os.getpid()\n")
    file = tmp_path / "counts.py"
    file.write_text(
        "import helper_of_mine, hypothesis, os\ndef agent(task):\n    return float(helper_of_mine.PID == os.getpid())\n"
    )
    probe = await check_agent(as_agent(f"{file}:agent"))
    assert "hypothesis" in probe.modules and "helper_of_mine" not in probe.modules
    (rollout,) = await world.run(f"{file}:agent", mode="val")
    assert rollout.reward == 1.0


@linux
async def test_a_library_that_reads_the_endpoint_when_imported_is_not_loaded_ahead(
    world, tmp_path, monkeypatch, caplog
):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "reads_early.py").write_text("import os\nBASE = os.environ.get('OPENAI_BASE_URL')\n")
    (library / "uses_it.py").write_text("import reads_early\n")
    monkeypatch.syspath_prepend(str(library))
    file = tmp_path / "early.py"
    file.write_text(
        "import os, uses_it, reads_early\ndef agent(task):\n    return reads_early.BASE == "
        "os.environ['OPENAI_BASE_URL']\n"
    )
    probe = await check_agent(as_agent(f"{file}:agent"))
    assert {"reads_early", "uses_it"} == set(probe.tainted)
    (rollout,) = await world.run(f"{file}:agent", mode="val")
    assert rollout.reward == 1.0


@linux
async def test_what_cannot_be_forked_is_imported_anew_with_one_warning(world, tmp_path, monkeypatch, caplog):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "threaded.py").write_text(
        "import threading, time\nworker = threading.Thread(target=time.sleep, args=(3600,), name='pump', "
        "daemon=True)\nworker.start()\n"
    )
    monkeypatch.syspath_prepend(str(library))
    file = tmp_path / "uses_threads.py"
    file.write_text("import threaded\ndef agent(task):\n    return threaded.worker.is_alive()\n")
    rollouts = await world.run(f"{file}:agent", [1, 2], mode="val")
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0]
    assert caplog.text.count("a library starts threads when imported (pump)") == 1


async def test_what_an_agent_draws_follows_from_its_rollouts_seed(world, tmp_path):
    file = tmp_path / "draws.py"
    file.write_text(
        "import random, numpy\nX = random.random()\ndef agent(task): return [X, random.random(), "
        "numpy.random.random()]\n"
    )
    drawn = []

    def grade(task, output, attempt):
        drawn.append((task, output))
        return 1.0

    for tasks in ([1], [1, 2]):  # a rollout's seed follows from its place
        world.count, world.run_id = 0, f"run{len(tasks)}"
        await world.store.create_run(RunRecord(world.run_id, "run", "x", RunStatus.RUNNING, {}, 0.0))
        await world.run(f"{file}:agent", tasks, mode="val", grader=grade)
    (_, first), (_, again), (_, other) = sorted(drawn)
    assert first == again and all(a != b for a, b in zip(first, other, strict=True))


# --------------------------------------------------------------------------- ends


async def test_any_end_of_an_agents_process_is_its_own_failure(world, launcher):
    says = {
        "os._exit": "exited with code 7 before the agent returned",
        "segfault": "was killed by SIGSEGV",
        "raises": "ValueError: the database is on fire",
        "sys.exit": "sys.exit(3)",
    }
    *failed, fine = await world.run(path(agents.ends), [*says, "fine"], mode="val")
    for rollout in failed:
        assert rollout.failure.reason is Reason.AGENT_ERROR and says[rollout.task] in rollout.failure.message
    assert fine.reward == 1.0
    (printed,) = [report.stdout for report in world.reports if report.rollout.task == "segfault"]
    assert "Segmentation fault" in printed and "in ends" in printed


async def test_an_agent_that_ignores_sigterm_is_killed(world, launcher):
    (rollout,) = await world.run(path(agents.ignores_sigterm), deadline=1.0)  # it would sleep for an hour
    assert rollout.failure.reason is Reason.TIMEOUT and "its process was killed" in rollout.failure.message


@linux
@pytest.mark.parametrize("how", ["deadline", "return"])
async def test_an_agent_is_ended_with_all_it_started_also_outside_its_group(world, tmp_path, how):
    pids = tmp_path / "pids"
    (rollout,) = await world.run(
        path(agents.hangs_with_children), [{"pids": str(pids), "return": how == "return"}], deadline=3.0
    )
    assert rollout.status is (Status.SUCCEEDED if how == "return" else Status.FAILED)
    started = list(map(int, pids.read_text().split()))
    await world.until(lambda: not any(map(alive, started)))


@linux
async def test_a_dead_zygote_is_started_again_and_what_it_ran_is_lost(world):
    runners = world.make_runners(path(agents.hangs), deadline=60)
    await runners.start()
    ids = await world.enqueue([{"q": 1}])
    await world.until(lambda: world.engine.seen)
    zygote = runners.isolation.launcher
    (child,) = zygote._children.values()
    os.kill(zygote._process.pid, signal.SIGKILL)
    (rollout,) = await world.wait(ids)
    assert rollout.failure.reason is Reason.LOST
    await world.until(lambda: not alive(child.pid))
    world.engine.seen = 0
    await world.enqueue([{"q": 2}])
    await world.until(lambda: world.engine.seen)
    await runners.close()


@linux
async def test_a_zygote_that_dies_again_and_again_ends_the_pool_by_name(world, monkeypatch):
    runners = world.make_runners(path(agents.never_calls))
    await runners.start()
    os.kill(runners.isolation.launcher._process.pid, signal.SIGKILL)
    monkeypatch.setattr(process, "_BOOT", "import sys; sys.exit('no room')")
    with pytest.raises(AgentLightningError, match=r"process that starts agents died.*no room"):
        await world.wait(await world.enqueue([{"q": i} for i in range(20)]), timeout=20)
    await runners.close()


@pytest.mark.parametrize("kind", ["zygote", "spawn"])
def test_no_process_outlives_a_runner_that_is_killed(tmp_path, kind):
    pids = tmp_path / "pids"
    script = f"""
        import asyncio, sys
        from agentlightning.agent.calling import as_agent
        from agentlightning.agent.rollouts import Attempt, Rollout
        from agentlightning.runners import check
        from agentlightning.runners.assignment import Assignment, Endpoint
        from agentlightning.runners.process import ProcessIsolation
        from agentlightning.runners.output_log import OutputLog
        from agentlightning.nouns import Mode
        if {kind == "spawn"}:
            sys.platform = "other"
        async def main():
            spec = as_agent("{FILE}:hangs_with_children")
            isolation = ProcessIsolation(spec.source, spec.name, {{}}, check.new_launcher())
            await isolation.start()
            view = Rollout(rollout_id="r", input={{"pids": "{pids}"}}, mode=Mode.DEV, attempt=Attempt(attempt_id="r.1"))
            assignment = Assignment(view, Endpoint("", "k", "m", "http://127.0.0.1:9"), seconds_left=60)
            await isolation.run(assignment, OutputLog(), lambda name: None, stop=asyncio.Event())
        asyncio.run(main())
    """
    runner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=ENV)
    until = time.monotonic() + 90
    while not (pids.exists() and pids.read_text().count(" ") == 3) and time.monotonic() < until:
        time.sleep(0.05)
    started = list(map(int, pids.read_text().split()))[: 4 if kind == "zygote" else 2]
    assert len(started) > 1 and all(map(alive, started))
    runner.kill()
    runner.wait()
    until = time.monotonic() + 60
    while any(map(alive, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, started))


# --------------------------------------------------------------------------- what is checked


async def test_an_import_that_fails_in_the_process_is_one_line_with_the_users_traceback(tmp_path, launcher):
    file = tmp_path / "broken.py"
    file.write_text("def agent(task): pass\n\ndef explode():\n    return {}['no such key']\nexplode()\n")
    with pytest.raises(ConfigError, match=r"cannot be imported: KeyError: 'no such key' \(broken.py:4\)") as caught:
        await check_agent(as_agent(f"{file}:agent"))
    assert "\n" not in str(caught.value)
    assert "in explode" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os\ndef agent(task): pass\nos._exit(3)", "its import ended its process with exit code 3"),
        ("def agent(task, model_server): pass", "parameter 'model_server' that nothing is known for"),
        ("class agent: pass", "is a class"),
    ],
)
async def test_an_agent_that_cannot_be_used_is_found_before_anything_runs(tmp_path, text, says):
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        await check_agent(as_agent(f"{file}:agent"))


async def test_an_import_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "PROBE_TIMEOUT", 0.5)
    file = tmp_path / "slow.py"
    file.write_text("import time\ndef agent(task): pass\ntime.sleep(3600)")
    with pytest.raises(ConfigError, match=r"its import took longer than 0\.5 s"):
        await check_agent(as_agent(f"{file}:agent"))


def test_a_script_runs_its_own_agent_in_processes_and_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "train.py"
    text = """
        import asyncio
        from agentlightning.agent.calling import as_agent
        from agentlightning.runners.check import check_agent
        def agent(task, llm):
            return 1.0
        GUARD
            probe = asyncio.run(check_agent(as_agent(agent), "process"))
            print("checked", sorted(probe.parameters))
    """
    script.write_text(textwrap.dedent(text).replace("GUARD", "if __name__ == '__main__':"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=ENV)
    assert done.stdout == "checked ['llm']\n"
    script.write_text(textwrap.dedent(text).replace("GUARD", "if True:"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=ENV)
    assert (
        done.returncode == 1
        and "put that under `if __name__ == '__main__':`" in done.stderr.splitlines()[-1] + done.stderr
    )


async def test_a_big_task_and_a_big_output_pass_through(world, launcher):
    seen = []
    big = "x" * 3_000_000
    (rollout,) = await world.run(
        path(agents.answers), [{"answer": big}], grader=lambda task, output: seen.append(output) or 1.0
    )
    assert rollout.reward == 1.0 and seen == [big]


def open_descriptors():
    """How many descriptors this process has, those of the record's connections left out: one for each thread that
    reads, which come with the load."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of this listing
            found += "record.db" not in os.readlink(f"/proc/self/fd/{descriptor}")
    return found


async def test_many_short_attempts_do_not_leak_descriptors_or_processes(world):
    runners = world.make_runners(path(agents.never_calls), n_runners=8)
    await runners.start()
    await world.wait(await world.enqueue(range(8), mode="val"))
    await world.until(lambda: not runners.isolation._lingering)
    before = open_descriptors()
    await world.wait(await world.enqueue(range(40), mode="val"))
    await world.until(lambda: not runners.isolation._lingering)
    after = open_descriptors()
    await runners.close()
    assert after <= before + 2, (before, after)


def test_spawn_is_a_launcher():
    assert isinstance(check.new_launcher(), process.Zygote | Spawn)
