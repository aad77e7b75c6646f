"""How many threads compute: read from the system, decided in plain numbers, and held to by everything that computes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from agentlightning.engines.local.cores import Machine, Quota, Reading, free_cores, idlest
from agentlightning.engines.local.engine import LocalEngine
from agentlightning.engines.local.forward import SlotForward
from agentlightning.engines.local.team import Team
from agentlightning.engines.local.thread_count import bound_spinning, cores_for, long_spins, most_threads, threads_on
from agentlightning.engines.local.threads import Threads
from tests.engines.conftest import request
from tests.tiny import tiny_tokenizer

SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --------------------------------------------------------------------------- the number


@pytest.mark.parametrize(
    ("current", "most", "free", "expected"),
    [
        (8, 8, [], 8),
        (8, 8, [6.0], 8),  # one window is a passing process
        (8, 8, [6.2, 6.1], 6),
        (8, 8, [7.9, 6.1, 7.9], 8),  # a window in between has room for all
        (8, 8, [7.6, 7.5, 7.6, 7.5], 8),
        (6, 8, [6.2, 7.9, 7.9], 6),
        (6, 8, [7.9, 7.8, 7.7, 7.9], 8),
        (6, 8, [7.9, 7.8, 6.5, 7.9], 6),
        (6, 8, [7.0, 6.8, 6.9, 6.8], 7),
        (8, 8, [3.0, 2.0], 3),
        (2, 2, [1.0, 1.0], 1),
        (2, 2, [1.6, 1.5], 2),
        (1, 2, [2.0, 1.6, 2.0, 2.0], 1),
        (1, 2, [2.0, 1.7, 2.0, 2.0], 2),
        (2, 2, [0.3, 0.1], 1),
        (1, 1, [0.0, 0.0], 1),
    ],
)
def test_the_cores_that_are_computed_on_follow_those_that_are_free_and_do_not_flap(
    current: int, most: int, free: list[float], expected: int
):
    assert cores_for(current, most, free) == expected


def test_there_is_a_thread_on_each_free_core_and_two_on_a_single_one():
    assert [threads_on(cores, 8) for cores in range(1, 9)] == [2, 2, 3, 4, 5, 6, 7, 8]
    assert threads_on(1, 1) == 1


def test_there_are_never_more_threads_than_allowed():
    assert cores_for(1, 3, [16.0] * 4) == 3
    assert (
        most_threads(8, {}),
        most_threads(8, {"OMP_NUM_THREADS": "3"}),
        most_threads(2, {"OMP_NUM_THREADS": "8,2"}),
    ) == (8, 3, 2)
    assert (most_threads(4, {"OMP_NUM_THREADS": "nonsense"}), most_threads(4, {"OMP_NUM_THREADS": "0"})) == (4, 1)


# --------------------------------------------------------------------------- what is free


def test_what_others_use_is_what_is_used_less_our_own():
    before = Reading(at=10.0, own=5.0, cores={0: 40.0, 1: 60.0})
    assert free_cores(before, Reading(at=12.0, own=7.0, cores={0: 41.0, 1: 63.0}), 2) == 1.0
    assert (
        free_cores(before, Reading(at=12.0, own=9.0, cores={0: 41.9, 1: 62.0}), 2) == 2.0
    )  # clocks of different grain
    assert free_cores(before, Reading(at=11.0, own=5.0, cores={0: 45.0, 1: 64.0}), 4) == 0.0


def test_the_cores_that_others_use_least_are_taken_and_kept_until_it_pays_to_move():
    before = Reading(at=0.0, own=0.0, cores=dict.fromkeys(range(4), 0.0))
    after = Reading(at=1.0, own=1.0, cores={0: 0.5, 1: 1.0, 2: 0.2, 3: 0.9})
    assert idlest(before, after, 2, frozenset()) == {0, 2}
    assert idlest(before, after, 2, frozenset({1, 3})) == {1, 3}  # half of what was used there is our own
    assert idlest(before, after, 1, frozenset({1})) == {1}  # all of it
    assert idlest(before, replace(after, own=0.4), 1, frozenset({1})) == {2}
    assert idlest(before, Reading(at=1.0, own=1.0), 2, frozenset()) is None


def test_a_quota_leaves_what_its_group_does_not_use():
    before = Reading(at=0.0, own=0.0, cores={0: 0.0}, group=0.0)
    after = Reading(at=1.0, own=0.5, cores={0: 0.5}, group=1.5)
    assert free_cores(before, after, 16) == 16.0
    assert free_cores(before, after, 16, quota=1.5) == 0.5


def test_without_a_count_of_the_cores_the_load_average_tells_and_without_that_nothing_is_known():
    assert free_cores(Reading(0.0, 0.0), Reading(1.0, 1.0, load=4.0), 8) == 5.0
    assert free_cores(Reading(0.0, 0.0), Reading(1.0, 1.0), 8) is None


def stand_in(root: Path, stat: str, cgroup: str = "0::/\n", files: dict[str, str] | None = None) -> Path:
    for name, text in {"proc/stat": stat, "proc/self/cgroup": cgroup, **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores")
def test_only_cores_that_this_process_may_use_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3})
    used = "cpu{} 100 10 200 5000 70 3 7 20 900 90\n"  # guest's time is in user's and nice's already
    machine = Machine(
        stand_in(tmp_path, "cpu  9 9 9 9\n" + "".join(used.format(i) for i in range(12)) + "intr 5 0 0\n")
    )
    assert machine.cores == 2
    assert machine.read().cores == dict.fromkeys((1, 3), 340 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        (
            "0::/a/b\n",
            {
                "a/cpu.max": "150000 100000",
                "a/b/cpu.max": "max 100000",
                "a/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            },
            1.5,
        ),
        ("0::/not/seen/here\n", {"cpu.max": "300000 100000", "cpu.stat": "usage_usec 2500000\n"}, 3.0),
        (
            "4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n",
            {
                "cpu/job/cpu.cfs_quota_us": "50000",
                "cpu/job/cpu.cfs_period_us": "100000",
                "cpu/job/cpuacct.usage": "2500000000\n",
            },
            0.5,
        ),
    ],
)
def test_the_tightest_quota_of_the_control_groups_holds(
    tmp_path: Path, cgroup: str, files: dict[str, str], quota: float
):
    machine = Machine(
        stand_in(tmp_path, "cpu0 1 1\n", cgroup, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    )
    assert machine.quota is not None
    assert (machine.quota.cores, machine.read().group) == (quota, 2.5)
    assert machine.cores == min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, -(-quota // 1)
    )


def test_a_system_that_tells_nothing_leaves_the_number_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "getloadavg")
    machine = Machine(tmp_path)
    reading = machine.read()
    assert (machine.quota, reading.cores, reading.group, reading.load) == (None, None, None, None)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    threads = Threads(machine=machine, since=Reading(0.0, 0.0))
    threads.adapt()
    assert threads.count == machine.cores == torch.get_num_threads()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_busy_neighbour_is_seen_and_our_own_work_is_not():
    machine = Machine()

    def busiest(seconds: float) -> float:
        """The most that others were seen to use in a second of our own work."""
        before = machine.read()
        while (after := machine.read()).at - before.at < seconds:
            sum(range(20_000))
        free = free_cores(before, after, machine.cores)
        assert free is not None
        return machine.cores - free

    quiet = min(busiest(0.3) for _ in range(5))
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(machine.cores)]
    try:
        assert max(busiest(0.3) for _ in range(5)) > min(quiet + 0.2, machine.cores - 1.0)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


# --------------------------------------------------------------------------- everything that computes holds to it


@dataclass
class Told(Machine):
    """Cores of which others use as much as the test says, all of it on the first. Every reading is a second after the
    last one, and long past."""

    others: float = 0.0
    cores: int = 4
    bound_to: frozenset[int] | None = None
    quota: Quota | None = None
    _seconds: float = 0.0
    _used: float = 0.0

    def read(self) -> Reading:
        self._seconds += 1.0
        self._used += self.others
        return Reading(
            self._seconds - 1e6,
            0.0,
            {core: self._used if core == min(self.bound_to or {0}) else 0.0 for core in self.bound_to or {0}},
        )


async def test_the_number_changes_between_decode_steps_with_what_is_free(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    machine, said = Told(), list[str]()
    counts: list[int] = []
    decode = SlotForward.decode

    def watched(self: SlotForward, ids: list[int], positions: list[int]) -> torch.Tensor:
        counts.append(torch.get_num_threads())
        machine.others = 1.1 if 10 <= len(counts) < 20 else 0.0
        return decode(self, ids, positions)

    monkeypatch.setattr(SlotForward, "decode", watched)
    engine = LocalEngine(model, tiny_tokenizer(), threads=Threads(machine=machine, say=said.append))
    await engine.start()
    counts.clear()
    await engine.sample(request([5], max_tokens=40))
    await engine.close()
    assert (set(counts[:10]), counts[15], counts[-1]) == ({4}, 3, 4)
    assert sum(a != b for a, b in pairwise(counts)) == 2
    assert said == [
        "compute threads: 4 -> 3, spinning while they wait: other processes use 1.1 cores"
    ]  # the way back comes within the minute: the log has it


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
async def test_a_crowded_engine_computes_on_its_share_of_the_cores_and_on_all_when_the_others_are_gone(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(every := frozenset(os.sched_getaffinity(0))) == 1:
        pytest.skip("one core is no choice")
    monkeypatch.setenv("OMP_NUM_THREADS", str(len(every)))
    machine = Told(cores=len(every), bound_to=every)
    engine = LocalEngine(model, tiny_tokenizer(), threads=Threads(machine=machine))
    await engine.start()
    bound: list[tuple[int, dict[int, frozenset[int]]]] = []
    decode = SlotForward.decode

    def watched(self: SlotForward, ids: list[int], positions: list[int]) -> torch.Tensor:
        torch.ones(1 << 20).add_(1.0)  # by all threads of the team
        machine.others = len(every) - 1.0 if 10 <= len(bound) < 20 else 0.0
        tasks = [int(name) for name in os.listdir("/proc/self/task")]
        bound.append((threading.get_native_id(), {task: frozenset(os.sched_getaffinity(task)) for task in tasks}))
        return decode(self, ids, positions)

    monkeypatch.setattr(SlotForward, "decode", watched)
    await engine.sample(request([5], max_tokens=40))
    await engine.close()
    team, binding = bound[15]
    theirs = [task for task, cores in binding.items() if cores != every]
    assert len(theirs) >= 2 and team in theirs
    assert (
        {binding[task] for task in theirs} == {every - {min(every)}}
        if len(every) == 2
        else all(len(binding[t]) == 1 for t in theirs)
    )
    assert threading.main_thread().native_id not in theirs
    assert all(set(binding.values()) == {every} for _, binding in (*bound[:10], bound[-1]))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
@pytest.mark.parametrize("said", ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"])
def test_where_the_user_binds_threads_nothing_else_does(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(said, "true")
    before, after = os.sched_getaffinity(0), list[set[int]]()

    def bind() -> None:
        Team().bind(frozenset(list(before)[:1]))
        after.append(os.sched_getaffinity(0))

    run_in_thread(bind)
    assert after == [before]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")
def test_threads_that_cannot_be_bound_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def bind() -> None:
        team = Team()
        for _ in range(2):
            team.bind(frozenset({100_000}))

    run_in_thread(bind)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "compute threads are not bound to cores"
    ]


def run_in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_a_set_number_holds_on_the_engines_thread_whatever_the_load(model: LlamaForCausalLM) -> None:
    engine = LocalEngine(model, tiny_tokenizer(), threads=Threads(3, machine=Told(others=2.0)))
    await engine.start()
    await engine.sample(request([5], max_tokens=4))
    assert await engine.run_exclusive(torch.get_num_threads) == 3
    await engine.close()


async def test_a_deterministic_engine_never_changes_its_number(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(Machine, "read", Told(others=2.0).read)
    engine = LocalEngine(model, tiny_tokenizer(), deterministic=True)
    await engine.start()
    await engine.sample(request([5], max_tokens=4))
    assert await engine.run_exclusive(torch.get_num_threads) == most_threads(Machine().cores)
    await engine.close()


def test_each_thread_that_computes_gets_the_number() -> None:
    threads, counts = Threads(3), list[int]()

    def work() -> None:
        torch.ones(4).sum()  # a thread takes torch's number over when it first computes
        threads.adapt()
        counts.append(torch.get_num_threads())

    for thread in [threading.Thread(target=work) for _ in range(2)]:
        thread.start()
        thread.join()
    assert counts == [3, 3]


# --------------------------------------------------------------------------- spinning


def child(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in SPINNING} | variables
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=600, check=True
    )


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP library elsewhere")
def test_spinning_is_bounded_in_the_openmp_library_that_torch_loads():
    program = "from agentlightning.engines.local.thread_count import bound_spinning; bound_spinning(); import torch"
    assert "GOMP_SPINCOUNT = '100000'" in child(program, OMP_DISPLAY_ENV="VERBOSE").stderr
    assert "GOMP_SPINCOUNT = '77'" in child(program, OMP_DISPLAY_ENV="VERBOSE", GOMP_SPINCOUNT="77").stderr


def test_making_a_trainer_bounds_spinning_before_torch_is_loaded():
    program = (
        "import os, sys; from agentlightning import Trainer; Trainer(); print('torch' in sys.modules, "
        "os.environ['GOMP_SPINCOUNT'])"
    )
    assert child(program).stdout.split() == ["False", "100000"]


def test_agl_bounds_spinning():
    program = (
        "import os, sys; sys.argv = ['agl', '--version']\ntry: from agentlightning.cli import main; "
        "main()\nexcept SystemExit: print(os.environ['GOMP_SPINCOUNT'])"
    )
    assert child(program).stdout.split()[-1] == "100000"


@pytest.mark.parametrize("name", SPINNING)
def test_what_the_user_set_stays(name: str, monkeypatch: pytest.MonkeyPatch):
    for other in SPINNING:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "5")
    monkeypatch.delitem(sys.modules, "torch")
    bound_spinning()
    assert {other: os.environ.get(other) for other in SPINNING if other in os.environ} == {name: "5"}


def test_where_torch_came_first_one_line_says_what_to_set(monkeypatch: pytest.MonkeyPatch):
    assert long_spins() is None  # the tests' own environment says how to wait
    for name in SPINNING:
        monkeypatch.delenv(name, raising=False)
    line = long_spins()
    assert line is not None and "=100000 before Python starts" in line.replace(
        "KMP_BLOCKTIME=5 ", "GOMP_SPINCOUNT=100000 "
    )
    bound_spinning()
    assert not any(name in os.environ for name in SPINNING)  # too late: it would only look as if it held


SPUN = """
import os, time, torch
from agentlightning.engines.local.threads import Sleepers
torch.set_num_threads(2)

def spun():
    began = time.process_time()
    for _ in range(40):
        torch.zeros(1 << 17).add_(1.0)
        time.sleep(0.004)
    return time.process_time() - began

spun()
before = spun()
sleepers = Sleepers(len(os.sched_getaffinity(0)))
while_asleep = spun()
sleepers.close()
time.sleep(0.2)
print(before, while_asleep, spun())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP library")
def test_while_there_are_sleepers_waiting_threads_do_not_spin_and_afterwards_they_do():
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("with one core nothing waits")
    before, asleep, after = map(float, child(SPUN, OMP_NUM_THREADS="2").stdout.split())
    assert asleep < before / 2 and asleep < after / 2
