"""Trainer: the front door. Opens a run of an agent, tasks and an algorithm and returns what came of it.

Everything that cannot work is refused here, by name, before a model is loaded. The story of a step is in
algorithms/policy_gradient.py; what a run owns, and the order in which it is opened and closed, in opening.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agentlightning import tracing
from agentlightning.agent.calling import AgentSpec, LitAgent, as_agent
from agentlightning.agent.loading import load_object
from agentlightning.agent.resources import POLICY, NamedResources, refuse_clash
from agentlightning.agent.task_files import TABLES_AND_LINES
from agentlightning.agent.tasks import Tasks, check_tasks
from agentlightning.algorithms import ALGORITHMS, Algorithm
from agentlightning.algorithms.policy_gradient import PolicyGradient
from agentlightning.algorithms.ports import StopRequested
from agentlightning.engines.local.thread_count import bound_spinning
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json, Mode, RunStatus
from agentlightning.policies import check_layout
from agentlightning.records.ledger import Ledger, total
from agentlightning.records.result import Evaluation
from agentlightning.run.arguments import check_adapter, checked, layout_of, matched_by
from agentlightning.run.entry import Interrupts, outliving_terminal, run_here, run_sync
from agentlightning.run.model_choice import external_models, with_model_named
from agentlightning.run.opening import OpenRun, Plan, open_run
from agentlightning.runners.compaction import check_parameters
from agentlightning.runners.companions import AdapterView, Companions, hooks_of
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.foreign import ForeignSettings, SpeaksForeign
from agentlightning.settings.sources import Resolved, resolve
from agentlightning.spellings.absent import find
from agentlightning.store.run_lock import Asked, description_of, how_to_resume
from agentlightning.text import one_line, plural
from agentlightning.tracing.tracer import Tracer
from agentlightning.views.result import FitResult

if TYPE_CHECKING:
    from agentlightning.records.progress import Progress
    from agentlightning.run.last_trace import LastTrace
    from agentlightning.views.dev.report import DevReport

T = TypeVar("T")

_NO_PART_YET = {
    "store": "set store={'url': 'sqlite:///...'} instead of handing over an object",
    "dev": "call trainer.dev(agent, tasks)",
}

_ONLY_TASKS = {Mode.DEV: "tasks", Mode.VAL: "tasks"}
"""What the tasks are called where one data set is passed."""


class Trainer:
    """Trains an agent that runs unchanged.

    ``algorithm`` is an instance such as ``GRPO(group_size=8)`` (default: what the config file says, else GRPO), or what
    stands for settings in another program's names, such as ``VERL(config)``: those hold where nothing else says so.
    ``model`` is a Hugging Face folder or hub id. ``config`` is a RunConfig, a mapping, or the path of a TOML file;
    further keywords set single settings over it, by section: ``Trainer(model=..., steps=20, learner={"lr": 1e-5},
    sampling={"max_tokens": 64})``. ``n_runners`` (or ``n_workers``) attempts run at once. ``grader(task, output,
    attempt)`` scores attempts whose agent returns no number. ``compact(messages, tools, limit, count)``, a
    function or ``"FILE.py:name"``, shortens a history that has grown past the model's context. ``max_tasks`` (or
    ``max_rollouts``) uses only the first tasks. ``tracer`` and ``hooks`` go along with each attempt where its agent
    runs (docs/agents.md); ``trainer.tracer`` is the one that agents are given. ``adapter`` says which agents are
    trained, ``{"agent_match": "write"}``, or makes triplets of each attempt's spans; ``trainer.adapter.agent_match`` is
    what it says, None for all. ``progress`` False prints nothing; a
    Progress object is told instead of the terminal.

    Raises ConfigError for anything that cannot work: an unknown or unsupported argument, a setting out of range, a
    combination nothing can be learned from. Nothing is started before ``fit``.
    """

    @checked
    def __init__(
        self,
        *,
        algorithm: Algorithm | SpeaksForeign | None = None,
        model: str | Path | None = None,
        config: RunConfig | Mapping[str, Json] | str | Path | Resolved | None = None,
        n_runners: int | None = None,
        n_workers: int | None = None,
        train_dataset: Tasks | None = None,
        val_dataset: Tasks | None = None,
        num_epochs: int | None = None,
        max_tasks: int | None = None,
        max_rollouts: int | None = None,
        port: int | None = None,
        output_dir: str | Path | None = None,
        resources: Mapping[str, Json] | None = None,
        initial_resources: Mapping[str, Json] | None = None,
        grader: Callable[..., Any] | None = None,
        compact: Callable[..., Any] | str | None = None,
        tracer: Any = None,
        hooks: Any = None,
        adapter: Any = None,
        triplet_exporter: Any = None,
        strategy: str | Mapping[str, Any] | None = None,
        daemon: bool | None = None,
        progress: Progress | bool = True,
        **settings: Any,
    ) -> None:
        bound_spinning()
        for name in [
            name for name, value in settings.items() if not value and (entry := find(name)) and not entry.synonym
        ]:
            del settings[name]  # asks for nothing that is absent
        for name in [name for name in _NO_PART_YET if name in settings and not isinstance(settings[name], Mapping)]:
            if settings.pop(name):
                raise ConfigError(f"Trainer({name}=...) has no part behind it in this version: {_NO_PART_YET[name]}")
        del daemon  # agents' processes end with the program, and a run waits for them: both of its meanings hold
        flags = dict(settings)
        given_adapter = _one_of("adapter", adapter, "triplet_exporter", triplet_exporter)
        match = matched_by(given_adapter)
        trained = flags.get("trained_agents")
        _put(flags, "trained_agents", _one_of("adapter's agent_match", match, "trained_agents", trained))
        self._strategy = layout_of(strategy)
        if self._strategy == "sm":
            flags = _laid_over({"runner": {"isolation": "thread"}}, flags)
        _put(flags, "model.path", None if model is None else str(model))
        _put(flags, "runner.n_runners", _one_of("n_runners", n_runners, "n_workers", n_workers))
        _put(flags, "gateway.port", port)
        _put(flags, "epochs", _one_of("epochs", flags.get("epochs"), "num_epochs", num_epochs))
        _put(flags, "output_dir", None if output_dir is None else str(output_dir))
        self.foreign = algorithm.foreign_settings() if isinstance(algorithm, SpeaksForeign) else ForeignSettings({})
        self.resolved: Resolved = _resolve(
            config, flags, None if isinstance(algorithm, SpeaksForeign) else algorithm, self.foreign
        )
        self.config: RunConfig = self.resolved.config
        if self._strategy == "sm" and self.config.runner.isolation == "process":
            raise ConfigError("strategy='sm' and runner.isolation='process' say the opposite: leave one of them out")
        self.algorithm: Algorithm = cast(Algorithm, self.resolved.algorithm)
        self.grader = grader
        self.compact: Callable[..., Any] | None = load_object(compact) if isinstance(compact, str) else compact
        if self.compact is not None:
            check_parameters(self.compact)
        self.tracer: Any = Tracer() if tracer is None else tracer
        self.adapter: Any = (
            AdapterView(match) if given_adapter is None or isinstance(given_adapter, Mapping) else given_adapter
        )
        self.companions = Companions(self.tracer, hooks_of(hooks), match)
        self.train_dataset = train_dataset
        self.val_dataset = val_dataset
        self.max_tasks = _one_of("max_tasks", max_tasks, "max_rollouts", max_rollouts)
        given = _one_of("resources", resources, "initial_resources", initial_resources) or {}
        self.resources: Mapping[str, Json] = {**external_models(self.config.resources, os.environ), **given}
        NamedResources(self.resources).to_json()  # refuses what is no resource
        self.progress = progress
        self.asked: Asked | None = None
        """The command that asks for what this does, where one does; it is recorded, so that a run can be resumed by
        it."""
        self._run_id: str | None = None
        """The newest run that was opened; ``_record_url`` says in which record."""
        self._record_url = ""
        tracing.note_trainer(self)

    # ------------------------------------------------------------------ what a user calls

    @checked
    def fit(
        self,
        agent: Any,
        train_dataset: Tasks | None = None,
        val_dataset: Tasks | None = None,
        *,
        val_data: Tasks | None = None,
        resume: bool | str = False,
    ) -> FitResult:
        """Trains ``agent`` on ``train_dataset`` and returns the result.

        ``agent`` is a function, a ``LitAgent``, or ``"FILE.py:name"``. Tasks are JSON values, or the path of a file
        with them. ``val_dataset`` (or ``val_data``) is scored before and after. ``resume`` True goes on with the latest
        unfinished run of the same name in the same output folder, or with the run of the given id. Ctrl-C once saves a
        checkpoint and returns; a second time stops at once.

        Raises ConfigError, TaskError or ModelError before anything starts, RunFailed when the run cannot go on (its
        last checkpoint is whole), StoreError when the record cannot be written.
        """
        with outliving_terminal():
            val = _one_of("val_dataset", val_dataset, "val_data", val_data)
            return run_sync(lambda interrupts: self._fit(interrupts, agent, train_dataset, val, resume))

    @checked
    async def train(self, agent: Any, *, resume: bool | str = False) -> FitResult:
        """``fit`` as a coroutine, on the data sets the constructor got."""
        return await run_here(lambda interrupts: self._fit(interrupts, agent, None, None, resume))

    @checked
    def evaluate(self, agent: Any, tasks: Tasks | None = None) -> Evaluation:
        """Scores ``agent`` with the model as it is, with the evaluation settings, on ``tasks`` (default: the validation
        data set)."""
        return run_sync(lambda interrupts: self._evaluate(interrupts, agent, tasks))

    @checked
    def validate(self, agent: Any, tasks: Tasks | None = None) -> Evaluation:
        """The same as ``evaluate``."""
        return self.evaluate(agent, tasks)

    @checked
    def dev(
        self, agent: Any, tasks: Tasks | None = None, n: int = 3, *, train_dataset: Tasks | None = None
    ) -> DevReport:
        """Runs ``n`` rollouts without training, and the first one's task once more, and prints and returns what was
        called, recorded and scored, and everything that would keep this agent from being trained. ``train_dataset`` is
        another name for ``tasks``.

        Where the resources hold an LLM with an endpoint as ``main_llm``, or no model is given, the rollouts are against
        that endpoint and no model is loaded; nothing is run once more.
        """
        tasks = _one_of("tasks", tasks, "train_dataset", train_dataset)
        report = run_sync(lambda interrupts: self._dev(interrupts, agent, tasks, n))
        if self.progress is True:
            from agentlightning.views.screen import show

            show(report)
        return report

    def last_trace(self) -> LastTrace:
        """The recorded trace of the rollout that ended last, in the newest run of this Trainer. Raises ConfigError
        where none has ended, StoreError where the record cannot be read."""
        from agentlightning.run.last_trace import none_has_ended, read_last_trace

        if self._run_id is None:
            raise none_has_ended()
        return read_last_trace(self._record_url, self._run_id)

    # ------------------------------------------------------------------ how it goes

    @asynccontextmanager
    async def _running(self, plan: Plan, interrupts: Interrupts) -> AsyncGenerator[OpenRun]:
        """A run from its opening to its close, which the first Ctrl-C asks to save and end."""
        async with open_run(plan) as run, interrupts.asking(_asked_to_stop(run)):
            self._run_id, self._record_url = run.record.id, run.ports.config.record_url
            yield run

    async def _fit(
        self,
        interrupts: Interrupts,
        agent: Any,
        train_dataset: Tasks | None,
        val_dataset: Tasks | None,
        resume: bool | str,
    ) -> FitResult:
        plan = self._plan(agent, train_dataset, val_dataset, resume=resume)
        async with self._running(plan, interrupts) as run:
            journal = run.journal
            status, stopped_by = RunStatus.FINISHED, None
            run.progress.run_started(run.record, journal.total_steps)
            if run.resumed:
                await journal.take_up()
            try:
                await self.algorithm.fit(run.ports)
                if run.resumed and not journal.come.made:
                    run.progress.message(
                        f"run {run.record.id}: all of its {plural(journal.last_step, 'step')} were done, none was left "
                        "to make"
                    )
            except StopRequested as stop:
                status, stopped_by = RunStatus.STOPPED, str(stop)
                await journal.save()
            result = await _result(run, status, stopped_by)
            if result.history or result.validations:
                _plot(result, run)
            result.save()
            # Last: a run that is killed before it has its result is resumed for it.
            await run.store.end_run(run.record.id, status)
            run.progress.finished(result.to_json())
            return result

    async def _evaluate(self, interrupts: Interrupts, agent: Any, tasks: Tasks | None) -> Evaluation:
        plan = self._plan(agent, None, tasks, mode=Mode.VAL)
        async with self._running(plan, interrupts) as run:
            run.progress.run_started(run.record, 0)
            try:
                evaluation = await run.journal.evaluate(0)
            except StopRequested as stop:
                raise interrupts.interrupted() from stop
            assert evaluation is not None
            await run.store.end_run(run.record.id, RunStatus.FINISHED)
            return evaluation

    async def _dev(self, interrupts: Interrupts, agent: Any, tasks: Tasks | None, n: int) -> DevReport:
        from agentlightning.templates import describe
        from agentlightning.views.dev.report import dev_report

        plan = self._plan(agent, tasks, None, mode=Mode.DEV)
        async with self._running(plan, interrupts) as run:
            run.progress.run_started(run.record, 0)
            interrupted, repeats = False, dict[str, str]()
            try:
                tasks = run.ports.tasks.take(n)
                first, *_ = await run.rollouts.sample(tasks, 1, Mode.DEV)
                ended = (report for report in run.reports if report.rollout.id == first.traces[0].rollout.id)
                if any(report.usage.calls and report.result.failure is None for report in ended):
                    # Once more, now that it has ended well: an agent that keeps replies makes no call this time.
                    (again,) = await run.rollouts.sample(tasks[:1], 1, Mode.DEV)
                    repeats[again.traces[0].rollout.id] = first.traces[0].rollout.id
                await run.pool.settle()
            except StopRequested as stop:
                if not run.reports:
                    raise interrupts.interrupted() from stop
                interrupted = True
            await run.store.end_run(run.record.id, RunStatus.STOPPED if interrupted else RunStatus.FINISHED)
            traces = [await run.rollouts.trace(report.rollout) for report in run.reports]
            external = {name: llm.model for name, llm in NamedResources(plan.resources).external().items()}
            return dev_report(
                run.reports,
                traces,
                plan.agent,
                run.ports.config,
                probe=run.rollouts.probe,
                template={} if run.template is None else describe(run.template),
                interrupted=interrupted,
                external=external,
                trains=plan.has_policy,
                repeats=repeats,
                credit=self.algorithm.credit if isinstance(self.algorithm, PolicyGradient) else None,
            )

    def _plan(
        self,
        agent: Any,
        train: Tasks | None,
        val: Tasks | None,
        *,
        mode: Mode = Mode.TRAIN,
        resume: bool | str = False,
    ) -> Plan:
        """Everything checked that can be checked before a model is loaded."""
        if (
            isinstance(train, str)
            and train.startswith(("http://", "https://"))
            and Path(train).suffix not in TABLES_AND_LINES
        ):
            raise ConfigError(
                f"fit(agent, {train!r}): joining a running server as workers has no part behind it in this version; "
                "pass the tasks"
            )
        external = NamedResources(self.resources).external()
        trains = mode is Mode.TRAIN and self.algorithm.trains_weights
        if mode is Mode.TRAIN and not trains and self.config.model.path:
            raise ConfigError(
                f"model={self.config.model.path!r}: {self.algorithm.name} trains no weights and loads no model; leave "
                "it out, and hand the agent what it calls as resources={'llm': LLM(endpoint=..., model=...)}"
            )
        if mode is Mode.TRAIN and not trains and not external and self.algorithm.needs_llm:
            raise ConfigError(
                f"{self.algorithm.name} trains no weights and loads no model, so the agent has nothing to call: pass "
                "resources={'llm': LLM(endpoint=..., model=...)}"
            )
        resolved, notes = self.resolved, list(self.foreign.notes)
        needs_one = trains or (not external and (mode is not Mode.TRAIN or self.algorithm.needs_llm))
        if needs_one:
            resolved, said = with_model_named(resolved, NamedResources(self.resources))
            notes += [said] if said else []
        if needs_one and not resolved.config.model.path:
            raise ConfigError(
                "no model: pass model= (--model), a Hugging Face folder, a hub id, or 'smollm2' to begin with, which "
                "`agl model smollm2` makes"
            )
        check_layout(self.config.layout)
        if trains:
            check_adapter(self.adapter, self.algorithm.name)
        if mode is Mode.TRAIN:
            self.algorithm.check(resolved.config)
        refuse_clash(external, {POLICY})
        spec: AgentSpec = as_agent(agent)
        files = self.foreign
        if isinstance(agent, LitAgent):
            cast("LitAgent[Any]", agent).set_trainer(self)
        if self._strategy == "cs" and self.config.runner.isolation == "auto" and not spec.from_path:
            notes.append(
                f"strategy='cs': {spec.name} is an object of this program, and runs in threads of it; for processes of "
                "its own pass 'FILE.py:name', or runner={'isolation': 'process'}"
            )
        train_tasks: list[Json] = []
        if mode is not Mode.VAL:
            name, given = (
                ("train_dataset", self.train_dataset)
                if train is None
                else (_ONLY_TASKS.get(mode, "train_dataset"), train)
            )
            train_tasks = _tasks(given, name, self.max_tasks, files.train, files.most_train, notes)
        name, given = ("val_dataset", self.val_dataset) if val is None else (_ONLY_TASKS.get(mode, "val_dataset"), val)
        val_tasks: list[Json] = []
        if mode is Mode.VAL or (mode is Mode.TRAIN and (given is not None or files.val)):
            val_tasks = _tasks(given, name, None, files.val, files.most_val, notes)
        if mode is Mode.TRAIN and resolved.config.evaluation.every and not val_tasks:
            resolved = self._without_validation(resolved, notes)
        return Plan(
            mode=mode,
            agent=spec,
            config=resolved.config,
            resolved=resolved,
            train=train_tasks,
            val=val_tasks,
            grader=self.grader,
            compact=self.compact,
            resources=self.resources,
            resume=self._resumes(resume) if mode is Mode.TRAIN else False,
            progress=self.progress,
            asked=self.asked,
            notes=tuple(notes) if mode is Mode.TRAIN else (),
            companions=self.companions,
            adapter=self.adapter if self.algorithm.trains_weights else None,
        )

    def _resumes(self, resume: bool | str) -> bool | str:
        return True if resume == "latest" else resume or self.foreign.resume or False

    def _without_validation(self, resolved: Resolved, notes: list[str]) -> Resolved:
        """The settings of a run without validation tasks. Raises ConfigError where somebody here asked for a
        validation."""
        evaluation, source = resolved.config.evaluation, resolved.sources.get("evaluation.every")
        if not self.foreign.has("evaluation.every", source):
            raise ConfigError(
                f"evaluation.every={evaluation.every} needs validation tasks: pass val_dataset (--val), or leave it out"
            )
        notes.append(f"nothing is validated, whatever {source} says: there are no validation tasks")
        config = resolved.config.model_copy(update={"evaluation": evaluation.model_copy(update={"every": 0})})
        return replace(resolved, config=config)


def _asked_to_stop(run: OpenRun) -> Callable[[str], None]:
    """What the first Ctrl-C (or SIGTERM) does: asks the run to save and end."""
    saving = "saving a checkpoint and " if run.record.config.get("mode") == Mode.TRAIN else ""

    def stop(name: str) -> None:
        run.progress.message(f"{name}: {saving}ending; once more to stop at once")
        run.stop.request("interrupted")

    return stop


async def _result(run: OpenRun, status: RunStatus, stopped_by: str | None) -> FitResult:
    journal, checkpoints = run.journal, run.journal.checkpoints
    steps = [step for step in await run.store.steps(run.record.id) if step.step <= journal.last_step]
    validations = journal.validations
    return FitResult(
        run_id=run.record.id,
        folder=run.folder,
        status=status,
        history=[{key: value for key, value in step.metrics.items() if key != "advantages"} for step in steps],
        validations=(*validations.done, *([validations.partial] if validations.partial is not None else ())),
        checkpoint=checkpoints and checkpoints.path,
        best_checkpoint=checkpoints and checkpoints.best(),
        ledger=total(Ledger.from_json(step.ledger) for step in steps),
        seconds=dict(journal.come.seconds),
        stopped_by=stopped_by,
        resume=how_to_resume(description_of(run.record, run.folder), run.record.id, run.folder)
        if status is RunStatus.STOPPED
        else None,
    )


def _plot(result: FitResult, run: OpenRun) -> None:
    """The learning curve, where it can be drawn: a run that went well does not fail over its picture."""
    try:
        result.plot()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # matplotlib is somebody else's, and may fail at anything
        why = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        run.progress.message(f"no learning curve: {one_line(why)}")


def _resolve(
    config: RunConfig | Mapping[str, Json] | str | Path | Resolved | None,
    arguments: Mapping[str, Json],
    algorithm: Algorithm | None,
    foreign: ForeignSettings,
) -> Resolved:
    """The settings a Trainer was given, by whatever way, over those of the environment and a file."""
    file = Path(config) if isinstance(config, str | Path) else None
    defaults = config if isinstance(config, RunConfig | Resolved) else None
    if isinstance(config, Mapping):
        arguments = _laid_over(config, arguments)
    return resolve(
        ALGORITHMS, file, env=os.environ, defaults=defaults, arguments=arguments, algorithm=algorithm, foreign=foreign
    )


def _laid_over(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Two mappings of settings by section as one; ``above`` wins, value by value."""
    laid = dict(below)
    for key, value in above.items():
        laid[key] = {**laid[key], **value} if isinstance(value, dict) and isinstance(laid.get(key), dict) else value
    return laid


def _tasks(
    given: Tasks | None, name: str, most: int | None, files: Sequence[str], most_of_files: int | None, notes: list[str]
) -> list[Json]:
    """The tasks that are passed, else those of the files that the settings name."""
    if given is not None or not files:
        if files:
            notes.append(f"{name} was passed, so that {', '.join(files)} is not read")
        return check_tasks(given, name, most)
    return [task for file in files for task in check_tasks(file, name)][: _least(most, most_of_files)]


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _put(flags: dict[str, Json], key: str, value: Json) -> None:
    if value is not None:
        flags[key] = value


def _one_of(name: str, value: T | None, other_name: str, other: T | None) -> T | None:
    """Two spellings of one argument."""
    if value is not None and other is not None:
        raise ConfigError(f"{name} and {other_name} are the same setting: pass one of them")
    return value if value is not None else other
