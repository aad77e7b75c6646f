"""Agents as users write them, good and bad. Imported by path, in processes too, so it needs nothing of the tests."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentlightning import LitAgent, emit_reward, rollout

AT_IMPORT = os.environ.get("OPENAI_BASE_URL")

_no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(base_url: str, text: str = "hello") -> str:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Content-Type": "application/json"})
    with _no_proxy.open(request, timeout=30) as reply:
        return json.loads(reply.read())["choices"][0]["message"]["content"]


def plain(task: Any, llm: Any) -> float:
    return float(ask(llm.endpoint) == "ok")


async def coroutine(task: Any, llm: Any) -> float:
    await asyncio.sleep(0)
    return float(ask(llm.endpoint) == "ok")


@rollout
def decorated(task: Any, llm: Any) -> float:
    return plain(task, llm)


class Classy(LitAgent):
    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return float(ask(resources["main_llm"].get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)) == "ok")

    async def validation_rollout_async(self, task: Any, rollout_id: str, resources: Any) -> float:
        return 0.25 + (ask(resources.get("main_llm").endpoint) == "ok") / 4


classy = Classy()


# --------------------------------------------------------------------------- rewards


def emits(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    emit_reward(0.25)
    emit_reward(0.125, name="style")
    emit_reward(0.5, reason="better")


async def emits_async(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    emit_reward(0.5)


def emits_in_thread(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    thread = threading.Thread(target=emit_reward, args=(task["reward"],))
    thread.start()
    thread.join()


_shared = ThreadPoolExecutor(2)


def emits_in_shared_executor(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    _shared.submit(emit_reward, task["reward"]).result()


def emits_in_child_process(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    subprocess.run([sys.executable, "-c", "from agentlightning import emit_reward; emit_reward(0.5)"], check=True)


def emits_in_forked_process(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    child = multiprocessing.get_context("fork").Process(target=emit_reward, args=(0.5,))
    child.start()
    child.join()


def emits_nan(task: Any, llm: Any) -> None:
    ask(llm.endpoint)
    emit_reward(float("nan"))


def emits_and_returns(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    emit_reward(0.25)
    return 0.75


def answers(task: Any, llm: Any) -> Any:
    ask(llm.endpoint)
    return task.get("answer")


def returns_bad(task: Any, llm: Any) -> Any:
    ask(llm.endpoint)
    import numpy

    return {
        "nan": float("nan"),
        "inf": float("-inf"),
        "text": "1.0",
        "array": numpy.ones(1),
        "huge": 10**400,
        "large": 1e308,
    }[task]


def asked(base_url: str, text: str) -> Any:
    """A call with its token ids, as a triplet has them."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "return_token_ids": True}
    request = urllib.request.Request(
        f"{base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _no_proxy.open(request, timeout=30) as reply:
        said = json.loads(reply.read())
    return {"token_ids": said["prompt_token_ids"]}, {"token_ids": said["choices"][0]["token_ids"]}


def returns_triplets(task: Any, llm: Any) -> list[Any]:
    """Two calls of its own, the second with a list of rewards to choose from, and what the task gives besides."""
    from agentlightning import Triplet

    made = [asked(llm.endpoint, text) for text in ("one", "two")] if task.get("ask", True) else []
    own = [
        Triplet(prompt=prompt, response=response, reward=reward, metadata={"turn": turn})
        for turn, ((prompt, response), reward) in enumerate(zip(made, task.get("rewards", ()), strict=False))
    ]
    return own + [Triplet(prompt={"token_ids": p}, response={"token_ids": r}, reward=x) for p, r, x in task["off"]]


def returns_good(task: Any, llm: Any) -> Any:
    ask(llm.endpoint)
    import numpy

    return {
        "int": 1,
        "true": True,
        "numpy": numpy.float32(1),
        "numpy_int": numpy.int64(1),
        "numpy_bool": numpy.bool_(True),
    }[task]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def returns_unprintable(task: Any, llm: Any) -> Any:
    ask(llm.endpoint)
    return Unprintable()


# --------------------------------------------------------------------------- failures


def raises(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    raise ValueError("the database is on fire")


def exits(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    sys.exit(3)


def interrupts(task: Any, llm: Any) -> float:
    raise KeyboardInterrupt


def ends(task: Any) -> float:
    """In the way that the task says."""
    if task == "os._exit":
        os._exit(7)
    if task == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "sys.exit":
        sys.exit(3)
    if task == "raises":
        raise ValueError("the database is on fire")
    return 1.0


def hangs(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    time.sleep(3600)
    return 1.0


async def hangs_async(task: Any, llm: Any) -> float:
    try:
        await asyncio.sleep(3600)
    finally:
        LEFT.append("cancelled")
    return 1.0


LEFT: list[str] = []


def ignores_sigterm(task: Any, llm: Any) -> float:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
    return 1.0


def hangs_with_children(task: Any, llm: Any) -> float:
    """A child in its group, one that left the group, and one that was orphaned outside it."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    orphan = (
        f"import subprocess, sys; print(subprocess.Popen({sleep!r}, start_new_session=True, stdout=-3, stderr=-3).pid)"
    )
    pids = [
        subprocess.Popen(sleep).pid,
        subprocess.Popen(sleep, start_new_session=True).pid,
        int(subprocess.run([sys.executable, "-c", orphan], capture_output=True, check=True).stdout),
    ]
    with open(task["pids"], "w") as file:
        file.write(" ".join(map(str, [os.getpid(), *pids])))
    if task.get("return"):
        return ask(llm.endpoint) == "ok"
    time.sleep(3600)
    return 1.0


def never_calls(task: Any, llm: Any) -> float:
    return 1.0


def prints_much(task: Any, llm: Any) -> float:
    reward = plain(task, llm)
    for i in range(1000):
        print(f"{i:4}", "x" * 10_000)
    print("the last line", file=sys.stderr)
    return reward


def leaves_threads(task: Any, llm: Any) -> float:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return plain(task, llm)


async def leaves_tasks(task: Any, llm: Any) -> float:
    LEFT.append(asyncio.create_task(asyncio.sleep(600)))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    return plain(task, llm)


def hundred_calls(task: Any, llm: Any) -> float:
    with ThreadPoolExecutor(100) as pool:
        return sum(answer == "ok" for answer in pool.map(lambda i: ask(llm.endpoint, f"q{i}"), range(100))) / 100


def too_long(task: Any, llm: Any) -> float:
    ask(llm.endpoint)
    ask(llm.endpoint, "x" * 5000)
    return 1.0


def too_long_but_recovers(task: Any, llm: Any) -> float:
    try:
        ask(llm.endpoint, "x" * 5000)
    except OSError:
        return plain(task, llm)
    return 0.0


def other_path(task: Any, llm: Any) -> float:
    try:
        _no_proxy.open(f"{llm.endpoint}/nonsense", b"{}", timeout=30)
    except OSError:
        return 1.0
    return 0.0


# --------------------------------------------------------------------------- environment


def from_environment(task: Any) -> float:
    return float(ask(os.environ["OPENAI_BASE_URL"]) == "ok")


def from_import_time(task: Any) -> float:
    return float(ask(AT_IMPORT or "") == "ok")


# --------------------------------------------------------------------------- marks


def ask_as(agent: str, llm: Any) -> str:
    return ask(f"{llm.endpoint.removesuffix('/v1')}/agent/{agent}/v1")


def marks(task: Any, llm: Any, rollout: Any) -> float:
    """One agent is marked before its call, one after it, the same one twice, and one from a thread."""
    rollout.mark_agent_as_trainable("planner")
    for agent in ("planner", "critic", "writer"):
        ask_as(agent, llm)
    rollout.mark_agent_as_trainable("critic")
    rollout.mark_agent_as_trainable("planner")
    thread = threading.Thread(target=rollout.mark_agent_as_trainable, args=("editor",))
    thread.start()
    thread.join()
    return 1.0


async def marks_async(task: Any, llm: Any, rollout: Any) -> float:
    rollout.mark_agent_as_trainable("planner")
    return float(ask_as("planner", llm) == "ok")


def marks_and_fails(task: Any, llm: Any, rollout: Any) -> float:
    rollout.mark_agent_as_trainable("planner")
    ask_as("planner", llm)
    if task["how"] == "hangs":
        time.sleep(60)
    if task["how"] == "dies":
        os._exit(3)
    raise ValueError("no plan")


def marks_too_late(task: Any, llm: Any, rollout: Any) -> float:
    """What it leaves running marks an agent when the attempt has ended; what came of that is printed when the next
    attempt asks."""
    ask_as("planner", llm)
    threading.Thread(target=_mark_later, args=(rollout,), daemon=True).start()
    return 1.0


late: list[str] = []


def _mark_later(rollout: Any) -> None:
    time.sleep(0.3)
    try:
        rollout.mark_agent_as_trainable("planner")
    except Exception as error:
        late.append(str(error))


def marks_in_forked_process(task: Any, llm: Any, rollout: Any) -> Any:
    ask_as("planner", llm)
    queue: Any = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=_mark_there, args=(rollout, queue))
    process.start()
    said = queue.get(timeout=20)
    process.join()
    return said


def _mark_there(rollout: Any, queue: Any) -> None:
    try:
        rollout.mark_agent_as_trainable("planner")
        queue.put("marked")
    except Exception as error:
        queue.put(str(error))


class Chooses(LitAgent):
    trained_agents = "planner|critic"

    def rollout(self, task: Any, llm: Any) -> float:
        return float(ask_as("planner", llm) == "ok")


chooses = Chooses()


# --------------------------------------------------------------------------- what it is given


def shows_environment(task: Any) -> Any:
    ask(os.environ["OPENAI_BASE_URL"])
    return dict(os.environ)


def shows_handed(task: Any, rollout: Any, resources: Any, prompt_template: Any, llm: Any) -> Any:
    ask(llm.endpoint)
    task["changed"] = True
    return {
        "rollout": rollout.rollout_id,
        "attempt": rollout.attempt.attempt_id,
        "mode": rollout.mode,
        "text": prompt_template.format(question="why"),
        "names": sorted(resources),
        "judge": [
            resources["judge"].endpoint == llm.endpoint,
            resources["judge"].api_key == llm.api_key,
            resources["judge"].model,
            resources["judge"].sampling_parameters,
        ],
        "main": [resources["main_llm"].endpoint == llm.endpoint, resources["main_llm"].sampling_parameters],
        "model": llm.model,
        "value": resources["limit"],
    }
