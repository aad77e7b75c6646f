"""Opening: turns a checked plan into a run with its ports, and closes it again, once and in order, whatever happened.

The order matters: the folder and its lock, the record, the model, the engine, the endpoint, the runners; closed the
other way round, so that no agent outlives the endpoint and no call outlives the record.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import orjson

from agentlightning.agent.calling import AgentSpec
from agentlightning.agent.resources import MAIN, POLICY, NamedResources
from agentlightning.algorithms.ports import Policy, Run
from agentlightning.algorithms.task_order import TaskOrder
from agentlightning.engines.local.cores import Machine
from agentlightning.engines.local.thread_count import most_threads
from agentlightning.errors import ConfigError, ModelError, StoreError, why_no_folder
from agentlightning.nouns import Json, Mode, Rollout, RunRecord, RunStatus, Status
from agentlightning.policies import layout_class
from agentlightning.policies.base import Learning, OpenedPolicy, Surroundings
from agentlightning.records.steps import StepsOfGroups
from agentlightning.run.agents_seen import AgentsSeen
from agentlightning.run.audience import Audience
from agentlightning.run.checkpoints import Checkpoints
from agentlightning.run.fingerprints import compare, fingerprint
from agentlightning.run.journal import Horizon, RunJournal
from agentlightning.run.model_choice import choose_model, with_model
from agentlightning.run.resources import RunResources
from agentlightning.run.rollouts import RunRollouts, Watch
from agentlightning.run.stopping import Stop
from agentlightning.run.validation import Validations
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.sources import Resolved, describe_run, leaves_of
from agentlightning.store.run_lock import Asked, RunLock, folder_of, how_to_resume, is_held
from agentlightning.text import at_home

if TYPE_CHECKING:
    from agentlightning.algorithms import Algorithm
    from agentlightning.records.attempts import AttemptReport
    from agentlightning.records.probe import AgentProbe
    from agentlightning.records.progress import Progress
    from agentlightning.runners.companions import Companions
    from agentlightning.runners.pool import RunnerPool
    from agentlightning.store.base import Store
    from agentlightning.templates.base import Template

logger = logging.getLogger("agentlightning")

_MAY_DIFFER = {
    "max_time",
    "steps",
    "epochs",
    "stop_at",
    "runner",
    "gateway",
    "checkpoint",
    "output_dir",
    "resources",
    "store",
    "evaluation",
}
"""Settings that a resumed run may change: none of them alters what an already recorded step would have been."""

_NAMES_AGENTS = "gateway.agents"
"""What of those it may not change after all: it says whose tokens are trained."""

IF_ANY = "auto"
"""What `resume` is for going on with the newest unfinished run of the name, and beginning one where there is none."""

AGENTS_BY = "search"
"""How ``trained_agents`` is matched, recorded with a run."""

NOTHING_YET = range(0)
"""No group: what an earlier process left queued waits until its step is made."""


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A record that whoever asks for the run has opened, and closes. ``run``, where it is given, is there already, and
    what is queued in it is run."""

    store: Store
    run: RunRecord | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a Trainer was asked to do, checked as far as it can be without a model."""

    mode: Mode
    agent: AgentSpec
    config: RunConfig
    resolved: Resolved
    train: Sequence[Json]
    val: Sequence[Json]
    grader: Callable[..., Any] | None
    compact: Callable[..., Any] | None
    resources: Mapping[str, Json]
    resume: bool | str
    progress: Progress | bool
    held: HeldRecord | None = None
    """The record that the run goes into where somebody else has opened it."""
    asked: Asked | None = None
    """The command that asked for it, where one did."""
    companions: Companions | None = None
    """What goes along with every attempt where its agent runs."""
    adapter: object = None
    """What makes triplets of attempts' spans, where the program has code of its own for that."""
    notes: Sequence[str] = ()
    """Lines for people, said when it begins."""

    @property
    def has_policy(self) -> bool:
        """Whether a model is loaded: where the algorithm trains it, or where there is one to be scored."""
        algorithm = cast("Algorithm", self.resolved.algorithm)
        if self.mode is Mode.TRAIN:
            return algorithm.trains_weights
        if self.mode is Mode.DEV and NamedResources(self.resources).main_is_external():
            return False  # what agents would be handed is somebody else's
        return bool(self.config.model.path)

    @property
    def handed(self) -> NamedResources:
        """The resources as this run hands them out: where it has a model, that is what agents are handed as theirs."""
        given = NamedResources(self.resources)
        return given.with_own_main() if self.replaces_main else given

    @property
    def replaces_main(self) -> bool:
        """Whether the run's own model takes the place of somebody else's that was given as ``main_llm``."""
        return self.has_policy and NamedResources(self.resources).main_is_external()


class RunPolicy(Policy, OpenedPolicy, Protocol):
    """A policy as its algorithm is handed it, and as the run that opened it has it."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is ready to sample. ``ports`` is what its algorithm is handed; the rest is for whoever runs that.

    ``template`` is the policy's chat template, None where no model is loaded. ``reports`` gets each attempt that ends,
    in mode ``dev``.
    """

    record: RunRecord
    folder: Path
    store: Store
    progress: Progress
    ports: Run
    rollouts: RunRollouts
    resources: RunResources
    journal: RunJournal
    stop: Stop
    pool: RunnerPool
    template: Template | None
    resumed: bool
    reports: list[AttemptReport]


@asynccontextmanager
async def open_run(plan: Plan) -> AsyncGenerator[OpenRun]:
    """A run that is ready to sample, with what its algorithm declares. On the way out everything it owns is closed; an
    error is recorded on the run before it goes on."""
    machine = Machine()
    began = machine.read()  # loading torch takes long enough to see how busy the machine is
    from agentlightning.gateway import Gateway
    from agentlightning.run.writer import MetricsWriter
    from agentlightning.runners.adapting import own_adapt
    from agentlightning.runners.check import check_agent, new_launcher
    from agentlightning.runners.compaction import Compactor
    from agentlightning.runners.local_desk import LocalDesk, run_here
    from agentlightning.store import open_store
    from agentlightning.views.live.choice import make_progress
    from agentlightning.views.live.guarded import guarded

    # Before user code runs: it may change the working folder
    anchored = replace(plan.resolved, config=plan.resolved.config.anchored())
    output = make_folder(anchored.config.output_dir)
    given = plan.handed
    probe = await check_agent(plan.agent, plan.config.runner.isolation, keys=given.keys_of_external())
    if probe.isolation == "process" and plan.companions is not None:
        plan.companions.to_json()  # says what cannot be made again there, before anything is loaded
    resolved = with_fixed_threads(with_agents_choice(anchored, probe), machine)
    async with AsyncExitStack() as closing:
        if plan.held is not None:
            store = plan.held.store
        else:
            store = open_store(anchored.config.record_url, durability=anchored.config.store.durability)
            closing.push_async_callback(store.close)
        resumed = await _find(plan, store) if plan.resume else None
        resolved, said = await _with_model_chosen(resolved, output, store, resumed)
        config = resolved.config
        prints = fingerprint(plan.train, plan.val, plan.agent, plan.grader, plan.compact, own_adapt(plan.adapter))
        description = {**describe_run(resolved, plan.agent.file), "mode": str(plan.mode), **prints}
        description["asked"] = plan.asked.to_json() if plan.asked is not None else None
        description["agents_by"] = AGENTS_BY
        held = None if plan.held is None else plan.held.run
        record, notes = (held, []) if held else await _record(plan, store, output, description, resumed)
        folder = make_folder(Path(record.folder))
        closing.enter_context(RunLock(folder, record.id))  # before its row says that it runs
        if held is not None:
            await store.requeue_running(record.id)
            await store.end_run(record.id, RunStatus.RUNNING)
        else:
            await _take_up(store, record, resumed=resumed is not None)
        closing.push_async_exit(_noting_the_end(store, record.id))
        (folder / "config.json").write_bytes(orjson.dumps(description, option=orjson.OPT_INDENT_2, default=str))

        resources = await RunResources.open(store, record.id, given)
        # What dev finds is printed on stdout; how it is getting on is not part of that.
        progress = guarded(make_progress(plan.progress, sys.stderr if plan.mode is Mode.DEV else None))
        closing.callback(progress.close)
        if plan.mode is Mode.TRAIN:
            closing.push(_saying_how_to_resume(progress, how_to_resume(description, record.id, folder)))
        if plan.replaces_main:
            notes.append(
                f"resource {MAIN!r} is this run's own model: its endpoint is for dev, and for where there is no model"
            )
        for note in [*plan.notes, *([said] if said else []), *notes]:
            progress.message(note)
        algorithm = cast("Algorithm", resolved.algorithm)
        horizon = Horizon(algorithm.total_steps(config, len(plan.train)), config.stop_at)
        policy = None
        if plan.has_policy:
            learning = Learning(algorithm.objective(), horizon.steps) if plan.mode is Mode.TRAIN else None
            policy = await _open_policy(
                config, Surroundings(progress, machine, began, _from_any_thread(progress.message)), learning
            )
            closing.push_async_callback(policy.close)
        compactor = None
        if plan.compact is not None:
            keys, seconds = given.keys_of_external(), config.gateway.compact_timeout
            compactor = Compactor(plan.compact, config.runner.n_runners, keys, seconds, folder / "logs" / "compact.log")
            closing.push_async_callback(compactor.close)
            compactor.start(partial(new_launcher, keys=keys))
        gateway = Gateway(
            store,
            {} if policy is None else {POLICY: policy.served},
            config.gateway,
            deterministic=config.deterministic,
            external=given.external(),
            compact=compactor,
        )
        await gateway.start()
        closing.push_async_callback(gateway.close)
        desk = LocalDesk(
            store,
            gateway,
            config.runner,
            record.id,
            sampling={Mode.TRAIN: config.sampling, Mode.VAL: config.evaluation, Mode.DEV: config.sampling},
            resources=given,
            external=resources.external,
            tokenizer=config.model.path if plan.has_policy else "",
            grader=plan.grader,
            adapter=plan.adapter,
            folder=folder,
        )
        desk.serve(plan.mode, NOTHING_YET)
        writer = MetricsWriter(folder, say=progress.message)
        closing.callback(writer.close)
        for note in writer.notes:
            progress.message(note)
        say = _from_any_thread(progress.message)
        here = run_here(desk, plan.agent, probe, companions=plan.companions, say=say)
        pool = await closing.enter_async_context(here)
        stop, audience, tasks = Stop(config.max_time), Audience(progress, writer), TaskOrder(plan.train, config.seed)
        watch = Watch(stop, progress, pool, None if policy is None else policy.busy)
        rollouts = RunRollouts(record.id, config, store, desk, probe, gateway.ended, resources, watch)

        def versions() -> dict[str, int]:
            return {} if policy is None else {POLICY: policy.version}

        validations = Validations(record.id, plan.val, config.evaluation, store, rollouts, audience, versions)
        checkpoints = None if policy is None else Checkpoints(folder / "checkpoints", policy, config.checkpoint)
        journal = RunJournal(record, horizon, store, tasks, rollouts, validations, checkpoints)
        ports = Run(config, tasks, rollouts, journal, resources, {} if policy is None else {POLICY: policy})
        run = OpenRun(
            record, folder, store, progress, ports, rollouts, resources, journal, stop, pool,
            template=None if policy is None else policy.served.template, resumed=resumed is not None, reports=[],
        )  # fmt: skip
        desk.on_attempt = (
            run.reports.append if plan.mode is Mode.DEV else AgentsSeen(config.trained_agents, progress.message)
        )
        yield run


async def _open_policy(config: RunConfig, surroundings: Surroundings, learning: Learning | None) -> RunPolicy:
    """The policy that is trained, or without ``learning`` only sampled. Loads torch."""
    surroundings.progress.phase("loading the model")
    opened = await layout_class(config.layout).open(POLICY, config, surroundings, learning)
    return cast("RunPolicy", opened)


def with_agents_choice(resolved: Resolved, probe: AgentProbe) -> Resolved:
    """The settings with the agent's own ``trained_agents`` where the run was given none, so that it is recorded, and
    resumed, like any setting.

    Raises ConfigError where both are given and differ.
    """
    given, own = resolved.config.trained_agents, probe.trained_agents
    if own is None or own == given:
        return resolved
    if given is not None:
        raise ConfigError(
            f"trained_agents is given twice: {given!r} ({resolved.sources.get('trained_agents', 'argument')}) and "
            f"{own!r} (agent {probe.name!r}): leave one of them out, or make them the same"
        )
    config = resolved.config.model_copy(update={"trained_agents": own})
    return replace(resolved, config=config, sources={**resolved.sources, "trained_agents": f"agent {probe.name}"})


def with_fixed_threads(resolved: Resolved, machine: Machine) -> Resolved:
    """The settings of a deterministic run with its number of threads where none was given, so that it is recorded:
    equal bits need equal threads, and a resume on a machine with other cores is refused."""
    if not resolved.config.deterministic or resolved.config.threads is not None:
        return resolved
    config = resolved.config.model_copy(update={"threads": most_threads(machine.cores)})
    return replace(resolved, config=config, sources={**resolved.sources, "threads": "deterministic"})


def _from_any_thread(tell: Callable[[str], None]) -> Callable[[str], None]:
    """``tell`` for other threads than this event loop's, where it is called, and in the context of whoever asks for it:
    what is told in an attempt's own is written to that attempt's log."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    def say(line: str) -> None:
        with suppress(RuntimeError):  # the loop was closed: the run is over, and nobody looks at it
            loop.call_soon_threadsafe(tell, line, context=context)

    return say


def _noting_the_end(store: Store, run_id: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """An exit that notes on the run why it failed, from the moment its row exists."""

    async def note(kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            return
        interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        status = RunStatus.STOPPED if interrupted else RunStatus.FAILED
        try:
            await store.end_run(run_id, status, "interrupted" if interrupted else f"{type(error).__name__}: {error}")
        except StoreError as second:
            # Where the record itself is what failed, the user is told so by the first error.
            logger.warning("the run's end could not be recorded: %s", second)

    return note


def _saying_how_to_resume(progress: Progress, how: str) -> Callable[..., None]:
    """An exit that says, of a run that did not come to its end, how to go on with it."""

    def say(kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # A model that is not there has nothing to go on with
        if error is not None and not isinstance(error, ModelError):
            progress.message(f"to go on: {how}")

    return say


async def _with_model_chosen(
    resolved: Resolved, output: Path, store: Store, resumed: RunRecord | None
) -> tuple[Resolved, str]:
    """The settings with the model that ``latest`` or a run's name means, and what is to be said of it. A resumed run
    goes on with the one that it began with."""
    choice = await choose_model(resolved.config.model.path, output, store)
    if not choice.said:
        return resolved, ""
    if resumed is None:
        return with_model(resolved, choice.path), choice.said
    return with_model(resolved, resumed.config["config"]["model"]["path"]), ""


async def _record(
    plan: Plan, store: Store, output: Path, description: Mapping[str, Json], resumed: RunRecord | None
) -> tuple[RunRecord, list[str]]:
    """The run's row: a new one, or on a resume the one it goes on with, with the folder that it has now, and what that
    is given otherwise than before. Changes nothing."""
    if resumed is not None:
        _same_settings(resumed, description)
        notes = compare(resumed.id, resumed.config, plan.train, plan.val, description)
        notes += _other_meaning(resumed)
        await _same_external(store, resumed.id, NamedResources(plan.resources))
        return replace(resumed, folder=str(folder_of(resumed, output) or output / resumed.id)), notes
    run_id = f"{plan.config.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    return RunRecord(
        run_id, plan.config.name, str(output / run_id), RunStatus.RUNNING, dict(description), time.time()
    ), []


def _other_meaning(resumed: RunRecord) -> list[str]:
    """What is said of a run that chose its agents when a pattern had to match whole names."""
    pattern = resumed.config["config"].get("trained_agents")
    if pattern is None or resumed.config.get("agents_by") == AGENTS_BY:
        return []
    return [
        f"run {resumed.id} was begun by a version in which trained_agents={pattern!r} had to match whole names of "
        "agents; now it is searched in them where no agent has that very name, so further steps may train more agents; "
        f"trained_agents='^({pattern})$' in a new run means what it meant"
    ]


async def _take_up(store: Store, record: RunRecord, *, resumed: bool) -> None:
    """Has the row say that the run is running, from this process, which holds its folder."""
    if not resumed:
        await store.create_run(record)
        return
    await store.requeue_running(record.id)
    await store.requeue_failed(await _hopeless(store, record.id))
    await store.end_run(record.id, RunStatus.RUNNING)


async def _same_external(store: Store, run_id: str, resources: NamedResources) -> None:
    """Raises ConfigError where a resumed run was not given an external model again: where it is called is not in the
    record."""
    try:
        recorded = await store.get_resources(run_id)
    except StoreError:  # it ended before it had recorded any
        return
    for name in resources.missing(NamedResources.from_json(recorded)):
        raise ConfigError(
            f"run {run_id} had the external model {name!r}: pass it again, resources={{{name!r}: LLM(endpoint=..., "
            f"model=..., api_key=...)}}; endpoints and keys are not recorded"
        )


async def _hopeless(store: Store, run_id: str) -> list[str]:
    """Rollouts of a step or validation in which all have failed: that ended the run, and would end it again if it were
    not run anew."""
    places = StepsOfGroups.of(await store.steps(run_id), await store.intents(run_id))
    together: dict[tuple[Mode, int], list[Rollout]] = {}
    for rollout in await store.rollouts(run_id):
        together.setdefault((rollout.mode, places.step_of(rollout)), []).append(rollout)
    return [
        r.id
        for rollouts in together.values()
        if all(r.status is Status.FAILED and r.reward is None for r in rollouts)
        for r in rollouts
    ]


async def _find(plan: Plan, store: Store) -> RunRecord | None:
    """The run to go on with. Of `IF_ANY` None where there is none, of another choice ConfigError."""
    runs = [run for run in await store.runs() if run.config.get("mode") == Mode.TRAIN]
    named = [run for run in runs if run.id == plan.resume or (plan.resume is True and run.name == plan.config.name)]
    # A finished one may lack steps that are asked for now
    for run in (
        *(run for run in named if run.status is not RunStatus.FINISHED),
        *named,
    ):
        return run
    if plan.resume == IF_ANY:
        return next((run for run in runs if run.name == plan.config.name and _was_left(run)), None)
    known = ", ".join(run.id for run in runs[:5]) or "none"
    if plan.resume is True:
        raise ConfigError(
            f"nothing to resume: no run named {plan.config.name!r} in {plan.config.output_dir}; runs there: {known}"
        )
    raise ConfigError(f"nothing to resume: no run {plan.resume!r} in {plan.config.output_dir}; runs there: {known}")


def _was_left(run: RunRecord) -> bool:
    """Whether a run has an end to come to, and no process that is at it."""
    return run.status is not RunStatus.FINISHED and Path(run.folder).is_dir() and not is_held(Path(run.folder))


def _same_settings(record: RunRecord, description: Mapping[str, Json]) -> None:
    """A resumed run must mean the same: refuses settings that would change what the recorded steps were."""
    old, new = _by_key(record.config), _by_key(orjson.loads(orjson.dumps(description, default=str)))
    differing = [
        f"{key} ({json.dumps(old.get(key))} then, {json.dumps(new.get(key))} now)"
        for key in dict.fromkeys((*new, *old))
        if old.get(key) != new.get(key)
    ]
    if differing:
        raise ConfigError(
            f"run {record.id} cannot be resumed with other settings: {'; '.join(differing)}. Start a new run, or set "
            "them back"
        )


def _by_key(description: Mapping[str, Json]) -> dict[str, Json]:
    """The settings of a run's description that a resume may not change, by dotted key."""
    settings = {**description["config"], "algorithm": description.get("algorithm")}
    found = {".".join(keys): value for keys, value in leaves_of(settings)}
    return {
        key: value
        for key, value in found.items()
        if key.partition(".")[0] not in _MAY_DIFFER or key.startswith(_NAMES_AGENTS)
    }


def make_folder(path: Path) -> Path:
    """Creates a folder and proves that it can be written. Raises ConfigError with the cause."""
    path = at_home(path).resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"the folder {path} cannot be written: {why_no_folder(path, error)}; choose another with output_dir"
        ) from error
    return path
