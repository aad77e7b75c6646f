"""RunRollouts: the Rollouts port over the store and the runners.

It queues rollouts, waits for them with a deadline, and reads what was recorded of them. It decides nothing about
rewards, tokens or losses.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentlightning.errors import RunFailed
from agentlightning.nouns import Intent, Json, Mode, Rollout
from agentlightning.records.traces import AttemptTrace, Group, Trace
from agentlightning.run.pace import Pace
from agentlightning.run.stopping import Stop
from agentlightning.settings.fields import RunConfig
from agentlightning.text import derive_seed

if TYPE_CHECKING:
    from agentlightning.algorithms.ports import Resources
    from agentlightning.engines.local.scheduler import Load
    from agentlightning.gateway.ended_attempts import EndedAttempts
    from agentlightning.records.probe import AgentProbe
    from agentlightning.records.progress import Progress
    from agentlightning.runners.local_desk import LocalDesk
    from agentlightning.runners.pool import RunnerPool
    from agentlightning.store.base import Store

POLL = 0.5
"""Seconds between looks at what rollouts are waited for, at most."""


@dataclass(slots=True)
class _Group:
    """A group that is waited for. ``began`` is when its first rollout was seen to run, by the monotonic clock."""

    number: int
    mode: Mode
    rollouts: list[Rollout]
    pending: set[str]
    done: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
    began: float | None = None

    @classmethod
    def of(cls, rollouts: list[Rollout]) -> _Group:
        return cls(rollouts[0].group, rollouts[0].mode, rollouts, {rollout.id for rollout in rollouts})


@dataclass(frozen=True, slots=True)
class Place:
    """Where the order of training's groups is: the next one's ``number``, and the numbers of those before it that were
    ``asked`` for and not taken."""

    number: int = 0
    asked: tuple[int, ...] = ()


class Watch:
    """What goes on while rollouts are waited for: ``stop`` or the end of ``pool`` may end it, and ``progress`` is
    told how fast the policy samples. ``load`` says what its engine has in hand; None where no model is loaded."""

    def __init__(
        self, stop: Stop, progress: Progress, pool: RunnerPool, load: Callable[[], Load] | None = None
    ) -> None:
        self.progress = progress
        self._stop = stop
        self._pool = pool
        self.step = 1
        """The training step that is being made."""
        self._load = load
        self._pace = Pace()

    def check(self) -> None:
        """Raises what keeps rollouts from being run: StopRequested, or what ended the runners."""
        self._pool.raise_if_dead()
        self._stop.check()

    def waiting(self, mode: Mode, total: int) -> None:
        """So many rollouts are waited for from now on."""
        phase, step = (
            ("validating", None) if mode is Mode.VAL else ("sampling", self.step if mode is Mode.TRAIN else None)
        )
        self.progress.phase(phase, total=total, step=step)
        if self._load is not None:
            self._pace = Pace()
            self._pace.note(time.monotonic(), self._load().sampled)

    def tell(self) -> None:
        if self._load is not None:
            load = self._load()
            self.progress.sampling(self._pace.note(time.monotonic(), load.sampled), load.live, load.waiting)


class RunRollouts:
    """See `Rollouts`. Ids and seeds follow from the run's seed and a rollout's place, so that a resumed run finds what
    it has already recorded."""

    def __init__(
        self,
        run_id: str,
        config: RunConfig,
        store: Store,
        desk: LocalDesk,
        probe: AgentProbe,
        ended: EndedAttempts,
        resources: Resources,
        watch: Watch,
    ) -> None:
        self._run_id = run_id
        self._config = config
        self._store = store
        self._desk = desk
        self._probe = probe
        self._resources = resources
        self.watch = watch
        self._late = _Late(ended)
        self._numbers: Counter[Mode] = Counter()
        """The number that the next group of each mode gets."""
        self._mixed = False
        self._asked: list[_Group] = []
        """Groups that were asked for and not handed over yet, in the order of asking."""
        self._replayed: deque[int] = deque()
        """Groups in the order in which they were learned from before a resume."""

    # ------------------------------------------------------------------ the port

    @property
    def outstanding(self) -> int:
        return sum(group.mode is Mode.TRAIN for group in self._asked)

    @property
    def probe(self) -> AgentProbe | None:
        return self._probe

    async def ask(
        self, tasks: Sequence[Json], size: int, mode: Mode = Mode.TRAIN, *, resources: int | None = None
    ) -> list[Rollout]:
        groups = await self._queue(tasks, size, mode, resources)
        self._asked += groups
        return [rollout for group in groups for rollout in group.rollouts]

    def mix_modes(self) -> None:
        self._mixed = True
        self._serve(Mode.DEV)

    async def next(self) -> Group:
        if not self._asked:
            raise RunFailed("next() has no group to wait for: ask() for one first")
        groups = list(self._asked)  # more may be asked for meanwhile
        if self._replayed:
            number = self._replayed.popleft()
            groups = [group for group in groups if group.number == number] or groups
        await self._wait(groups, any)
        group = next(group for group in groups if not group.pending)
        self._asked.remove(group)
        return await self._finished(group)

    async def sample(
        self, tasks: Sequence[Json], size: int, mode: Mode = Mode.TRAIN, *, resources: int | None = None
    ) -> list[Group]:
        groups = await self._queue(tasks, size, mode, resources)
        await self._wait(groups, all)
        if mode is Mode.DEV:
            await self._desk.all_told()
        return [await self._finished(group) for group in groups]

    def take_late(self) -> tuple[int, int]:
        return self._late.take()

    # ------------------------------------------------------------------ for the run

    def place(self) -> Place:
        """Where training is."""
        asked = tuple(group.number for group in self._asked if group.mode is Mode.TRAIN)
        return Place(self._numbers[Mode.TRAIN], asked)

    async def go_on(self, place: Place) -> None:
        """Goes on from there: a group that was asked for and not taken is there to be taken."""
        self._numbers[Mode.TRAIN] = place.number
        by_number: dict[int, list[Rollout]] = {number: [] for number in place.asked}
        for rollout in await self._store.rollouts(self._run_id, mode=Mode.TRAIN, groups=place.asked):
            by_number[rollout.group].append(rollout)
        self._asked = [_Group.of(rollouts) for rollouts in by_number.values()]

    def replay(self, intents: Sequence[Intent]) -> None:
        """``next`` gives first what was learned from before, in the same order."""
        self._replayed.extend(number for intent in intents for number in intent.groups)

    def number_from(self, mode: Mode, number: int) -> None:
        """The next group of this mode gets this number."""
        self._numbers[mode] = number

    async def trace(self, rollout: Rollout) -> Trace:
        """A finished rollout with everything recorded of it."""
        return await read_trace(self._store, rollout)

    # ------------------------------------------------------------------ parts

    async def _queue(self, tasks: Sequence[Json], size: int, mode: Mode, resources: int | None) -> list[_Group]:
        self.watch.check()
        version = self._resources.current if resources is None else resources
        first = self._numbers[mode]
        self._numbers[mode] += len(tasks)
        groups = [
            _Group.of(
                [queued(self._run_id, self._config.seed, task, mode, number, index, version) for index in range(size)]
            )
            for number, task in enumerate(tasks, first)
        ]
        await self._store.enqueue([rollout for group in groups for rollout in group.rollouts])
        self._serve(mode)
        return groups

    def _serve(self, mode: Mode) -> None:
        """Runs what was asked for in this mode. What an earlier process left queued beyond it waits until it is asked
        for."""
        if self._mixed:
            self._desk.serve_together({each: range(number) for each, number in self._numbers.items()})
        else:
            self._desk.serve(mode, range(self._numbers[mode]))

    async def _finished(self, group: _Group) -> Group:
        done = [group.done[rollout.id] for rollout in group.rollouts]
        if group.mode is Mode.VAL:
            return Group(group.number, tuple(Trace(rollout, ()) for rollout in done))
        return Group(group.number, tuple([await self.trace(rollout) for rollout in done]))

    async def _wait(self, groups: Sequence[_Group], enough: Callable[[list[bool]], bool]) -> None:
        """Until any or all of the groups are done. One past its deadline goes on by quorum: what still runs is
        cancelled."""
        self.watch.check()
        if enough([not group.pending for group in groups]):
            return
        mode = groups[0].mode
        self._serve(mode)
        total = sum(len(group.pending) for group in groups)
        self.watch.waiting(mode, total)
        by_id = {rollout.id: group for group in groups for rollout in group.rollouts}
        while not enough([not group.pending for group in groups]):
            pending = [rollout_id for group in groups for rollout_id in group.pending]
            for rollout in await self._store.wait(pending, timeout=POLL):
                group = by_id[rollout.id]
                group.done[rollout.id] = rollout
                group.pending.discard(rollout.id)
                self.watch.progress.rollout_done(rollout)
            self.watch.tell()
            self.watch.check()
            for group in groups:
                await self._give_up_late(group)

    async def _give_up_late(self, group: _Group) -> None:
        """Cancels what still runs of a group that has its quorum at its deadline, or has not at twice that."""
        size = len(group.rollouts)
        late = [rollout.id for rollout in group.rollouts if rollout.id in group.pending]
        finished = size - len(late)
        if not late or (finished == 0 and not self._desk.holds(late)):
            return
        now = time.monotonic()
        group.began = now if group.began is None else group.began
        waited, deadline = now - group.began, self._config.group_deadline
        if waited > deadline and finished >= self._config.quorum * size:
            why = f"group {group.number} went on after its deadline, with {finished} of {size} rollouts"
        elif waited > 2 * deadline:
            why = f"group {group.number} went on at twice its deadline, with {finished} of {size} rollouts"
        else:
            return
        await self._store.cancel(late, why)


def queued(run_id: str, seed: int, task: Json, mode: Mode, number: int, index: int, version: int) -> Rollout:
    """The rollout of a place in a run's order, as it is queued: its id and its seed follow from that."""
    return Rollout(
        id=f"{run_id}-{mode}-{number}-{index}",
        run_id=run_id,
        task=task,
        mode=mode,
        group=number,
        index=index,
        seed=derive_seed(seed, mode, number, index),
        resources_version=version,
        created_at=time.time(),
    )


async def read_trace(store: Store, rollout: Rollout) -> Trace:
    """A rollout with everything recorded of it."""
    rewards = await store.rewards(rollout.id)
    attempts = [
        AttemptTrace(
            a,
            tuple(await store.calls(a.id)),
            tuple(await store.nodes(a.id)),
            tuple(reward for reward in rewards if reward.attempt_id == a.id and not reward.late),
            tuple(await store.spans(a.id)),
        )
        for a in await store.attempts(rollout.id)
    ]
    return Trace(rollout, tuple(attempts))


class _Late:
    """Counts what came after its attempt had ended, anew each time it is asked."""

    def __init__(self, ended: EndedAttempts) -> None:
        self._ended = ended
        self._before = (0, 0)

    def take(self) -> tuple[int, int]:
        now = self._ended.calls, self._ended.rewards
        before, self._before = self._before, now
        return now[0] - before[0], now[1] - before[1]
