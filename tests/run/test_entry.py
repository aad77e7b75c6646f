"""How work is entered and ended from outside. Each test is a program of its own, whose signals are real; the work is a
few lines that own nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRELUDE = """
import asyncio, concurrent.futures, multiprocessing, os, signal, sys, threading
from agentlightning.run.entry import run_here, run_sync

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
    sys.stdout.flush()

def send(number=signal.SIGINT):
    os.kill(os.getpid(), number)

def plain(work):
    return run_sync(work)

def inside_a_loop(work):
    async def cell():
        return run_sync(work)
    return asyncio.run(cell())

def awaited(work):
    async def cell():
        return await run_here(work)
    return asyncio.run(cell())

def in_a_thread(work):
    def handler(*_):
        say("the main thread has it too")
        told.release()
    signal.signal(signal.SIGINT, handler)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(run_sync, work).result()

told = threading.Semaphore(0)

def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
"""
ENTRIES = ("plain", "inside_a_loop", "awaited", "in_a_thread")


def run(program: str, *, code: int = 0) -> list[str]:
    """What a program of its own printed, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("enter", ENTRIES)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_the_first_signal_asks_and_the_result_comes_back(enter: str, name: str) -> None:
    lines = run(f"""
async def work(interrupts):
    asked = asyncio.Event()
    async with interrupts.asking(lambda name: (say("asked by", name), asked.set())):
        send(signal.{name})
        await asked.wait()
        return "the result"

if "{enter}" == "in_a_thread":
    signal.signal(signal.SIGTERM, lambda *_: None)  # without a handler of the program's own it simply ends
before = handlers()
say({enter}(work))
say("{enter}" == "in_a_thread" or handlers() == before)
""")
    heard = [line for line in lines if line != "the main thread has it too"]
    assert heard == [f"asked by {name}", "the result", "True"], "and the handlers are what they were"
    assert (len(heard) < len(lines)) == (enter == "in_a_thread" and name == "SIGINT"), (
        "the main thread's own handler is not taken away"
    )


@pytest.mark.parametrize("enter", ENTRIES)
def test_the_second_signal_cancels_and_nothing_goes_on_once_the_caller_does(enter: str) -> None:
    lines = run(f"""
async def work(interrupts):
    asked = asyncio.Event()
    async with interrupts.asking(lambda name: asked.set()):
        send()
        await asked.wait()
        if "{enter}" == "in_a_thread":
            await asyncio.to_thread(told.acquire)
        send()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            say("closed")

try:
    {enter}(work)
except KeyboardInterrupt:
    say("interrupted", [thread.name for thread in threading.enumerate()])
""")
    assert [line for line in lines if line != "the main thread has it too"] == ["closed", "interrupted ['MainThread']"]


@pytest.mark.parametrize("enter", ENTRIES)
def test_a_signal_before_the_work_can_be_asked_cancels_it(enter: str) -> None:
    lines = run(f"""
async def work(interrupts):
    send()
    await asyncio.Event().wait()

try:
    {enter}(work)
except KeyboardInterrupt:
    say("interrupted")
""")
    assert lines[-1] == "interrupted"


@pytest.mark.parametrize("enter", ["plain", "inside_a_loop"])
def test_a_third_signal_does_what_it_did_before(enter: str) -> None:
    """Work that cannot be cancelled does not keep its user for ever."""
    lines = run(f"""
async def work(interrupts):
    asked = asyncio.Event()
    async with interrupts.asking(lambda name: asked.set()):
        send()
        await asked.wait()
        send()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            send()
            await asyncio.Event().wait()

signal.signal(signal.SIGINT, lambda *_: (say("the third"), os._exit(0)))
{enter}(work)
""")
    assert lines == ["the third"]


def test_an_exception_from_the_callers_own_handler_ends_the_work_first() -> None:
    lines = run("""
class Late(Exception): ...

def ring(*_):
    raise Late

async def work(interrupts):
    send(signal.SIGALRM)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
        say("closed")

signal.signal(signal.SIGALRM, ring)
try:
    inside_a_loop(work)
except Late:
    say("late")
""")
    assert lines == ["closed", "late"]


def test_whoever_cancels_an_awaited_run_waits_until_it_is_closed() -> None:
    lines = run("""
async def work(interrupts):
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.05)
        say("closed")

async def main():
    global begun
    begun = asyncio.Event()
    task = asyncio.create_task(run_here(work))
    await begun.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        say("cancelled")

asyncio.run(main())
""")
    assert lines == ["closed", "cancelled"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_program_whose_main_thread_ends_waits_for_the_work_in_another(interrupted: bool) -> None:
    """With executors at its disposal, which Python otherwise shuts down at once: without them nothing could be
    saved."""
    lines = run(
        f"""
async def work(interrupts):
    asked = asyncio.Event()
    async with interrupts.asking(lambda name: asked.set()):
        begun.set()
        await asyncio.to_thread(ended.wait)
        if {interrupted}:
            await asked.wait()
        await asyncio.sleep(0.1)
        say(await asyncio.to_thread(lambda: "saved"))

begun, ended = threading.Event(), threading.Event()
thread = threading.Thread(target=run_sync, args=(work,))
thread.start()
begun.wait()
if {interrupted}:
    ended.set()
    sys.stderr = open(os.devnull, "w")
    threading.Timer(0.1, send).start()
    thread.join()
threading._register_atexit(ended.set)
""",
        code=-signal.SIGINT if interrupted else 0,
    )
    assert lines == ["saved"]


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    lines = run("""
async def work(interrupts):
    async with interrupts.asking(lambda name: say("asked by", name)):
        send()
        await asyncio.sleep(0.05)
        return "the result"

signal.signal(signal.SIGINT, signal.SIG_IGN)
say(run_sync(work))
""")
    assert lines == ["the result"]


def test_two_at_once_are_both_told() -> None:
    """One in the main thread, one in another: whoever entered last does not take the signal from the first."""
    lines = run("""
async def work(interrupts):
    asked = asyncio.Event()
    async with interrupts.asking(lambda name: asked.set()):
        await asyncio.to_thread(ready.wait)
        if threading.current_thread() is threading.main_thread():
            send()
        await asked.wait()
        say("asked")

ready = threading.Barrier(2)
other = threading.Thread(target=run_sync, args=(work,))
other.start()
run_sync(work)
other.join()
""")
    assert lines == ["asked", "asked"]


@pytest.mark.parametrize("enter", ENTRIES)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_forked_child_is_ended_by_its_signals_and_the_work_is_not_told(enter: str, name: str) -> None:
    """Forked by a thread, as agents and graders are run; also under a loop of the caller's whose handlers have a wakeup
    descriptor."""
    lines = run(f"""
def child(pipe):
    sys.stderr = open(os.devnull, "w")
    pipe.send((signal.set_wakeup_fd(-1), signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM)))
    signal.pause()

def agent():
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=child, args=(theirs,))
    process.start()
    say(ours.recv() == (-1, True, signal.SIG_DFL))
    while process.is_alive():  # Python 3.13 may forget one that comes just before a call that waits
        os.kill(process.pid, signal.{name})
        process.join(1)
    say(process.exitcode)
    left = fork.Process(target=signal.pause, daemon=True)  # what an agent leaves behind holds nothing up
    left.start()

async def work(interrupts):
    loop = asyncio.get_running_loop()
    if "{enter}" == "awaited":
        loop.add_signal_handler(signal.SIGUSR1, say, "never")
    async with interrupts.asking(lambda name: say("asked by", name)):
        await asyncio.to_thread(agent)
        await asyncio.sleep(0.05)
        return "the result"

say({enter}(work))
""")
    assert lines == ["True", "1" if name == "SIGINT" else "-15", "the result"], (
        "a KeyboardInterrupt is exit code 1 there"
    )


def test_after_the_work_a_forked_child_inherits_what_it_always_did() -> None:
    lines = run("""
async def work(interrupts):
    return "the result"

def mine(*_): ...

signal.signal(signal.SIGTERM, mine)
say(run_sync(work))
pid = os.fork()
if pid == 0:
    say(signal.getsignal(signal.SIGTERM) is mine)
    os._exit(0)
os.waitpid(pid, 0)
""")
    assert lines == ["the result", "True"]
