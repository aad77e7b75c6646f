"""Which model a user means: a folder, a hub id, or by ``latest``, a run or its folder the best or the last checkpoint
that it left.

One function for every door at which a model is named. A folder that exists is what it is; a run is meant where one of
that name is in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentlightning.agent.resources import LLM, NamedResources
from agentlightning.errors import ConfigError
from agentlightning.nouns import RunRecord
from agentlightning.settings.fields import ExternalModel
from agentlightning.settings.sources import Resolved
from agentlightning.store.base import Store
from agentlightning.store.run_lock import folder_of
from agentlightning.text import at_home, printable

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """``path`` is what is loaded. ``said`` names the checkpoint for people where a run was meant; it is "" where the
    path is what was given."""

    path: str
    said: str = ""


async def choose_recorded_model(given: str, output: Path, url: str) -> ModelChoice:
    """As ``choose_model``, with the record at ``url`` where there is one. Raises ConfigError."""
    from agentlightning.store import open_store

    if not _is_there(url):
        return _choose(given, output, ())
    store = open_store(url, create=False)
    try:
        return await choose_model(given, output, store)
    finally:
        await store.close()


async def choose_model(given: str, output: Path, store: Store) -> ModelChoice:
    """What ``given`` means, among the runs of the record in the folder ``output``. Raises ConfigError where a run is
    meant that left no checkpoint."""
    return _choose(given, output, await store.runs())


def _is_there(url: str) -> bool:
    return not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).is_file()


def with_model(resolved: Resolved, path: str) -> Resolved:
    """The settings with this model."""
    config = resolved.config
    return replace(resolved, config=config.model_copy(update={"model": config.model.model_copy(update={"path": path})}))


def external_models(configured: Mapping[str, ExternalModel], env: Mapping[str, str]) -> dict[str, LLM]:
    """The models of ``[resources]`` as a program would pass them. Raises ConfigError for a key that is not there."""
    return {name: _external_model(name, model, env) for name, model in configured.items()}


def _external_model(name: str, model: ExternalModel, env: Mapping[str, str]) -> LLM:
    if model.api_key_env and not env.get(model.api_key_env):
        raise ConfigError(
            f"resources.{name}.api_key_env: the environment has no {model.api_key_env}: set it to the endpoint's key"
        )
    return LLM(
        endpoint=model.endpoint,
        model=model.model,
        api_key=env[model.api_key_env] if model.api_key_env else None,
        sampling_parameters=dict(model.sampling_parameters),
    )


def with_model_named(resolved: Resolved, resources: NamedResources) -> tuple[Resolved, str]:
    """The settings with the model that an `LLM` of the resources names, where they name none, and what is to be said of
    it. Raises ConfigError where several are named, of which one would have to be trained."""
    source = resolved.sources.get("model.path", "")
    if resolved.config.model.path:
        return resolved, f"model {resolved.config.model.path}, from {source}" if source.startswith("environ") else ""
    named = {name: llm.model for name, llm in resources.llms() if llm.model and not llm.endpoint}
    models = list(dict.fromkeys(named.values()))
    if not models:
        return resolved, ""
    if len(models) > 1:
        raise ConfigError(
            f"no model is set, and the resources name {', '.join(f'{n} = {m!r}' for n, m in named.items())}: say which "
            "one is trained, Trainer(model=...)"
        )
    name, path = next(iter(named)), models[0].removeprefix("openai/") if "/" in models[0][7:] else models[0]
    chosen = with_model(resolved, path)
    return replace(chosen, sources={**chosen.sources, "model.path": f"resource {name}"}), (
        f"model {path}, from the LLM {name!r} of the resources: no setting names one"
    )


def _choose(given: str, output: Path, runs: Sequence[RunRecord]) -> ModelChoice:
    folder = at_home(given)
    if not given or folder.is_dir():
        inside = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
        if not given or (folder / "tokenizer_config.json").is_file() or not any(inside.glob("step-*")):
            return ModelChoice(given)
        name = inside.resolve().parent.name if inside.name == "checkpoints" else inside.name
        return _checkpoint_of(given, name, inside) or ModelChoice(given)
    named = [run for run in runs if given in (run.id, run.name) or given == LATEST]
    for run in named:
        where = folder_of(run, output)
        if where is not None and (choice := _checkpoint_of(given, run.id, where / "checkpoints")) is not None:
            return choice
    if named and given != LATEST:
        raise ConfigError(
            f"run {given!r} has no checkpoint to take as a model: it saves one every checkpoint.save_every steps and "
            f"when it ends; `agl show {given}` says how far it came"
        )
    if given == LATEST:
        raise ConfigError(
            f"there is no latest model: no run in {printable(str(output))} has a checkpoint; name a model folder, or "
            "another place with --output-dir"
        )
    return ModelChoice(given)


def _checkpoint_of(given: str, run: str, folder: Path) -> ModelChoice | None:
    from agentlightning.learning import checkpoints

    chosen, last = checkpoints.best(folder), checkpoints.latest(folder)
    if last is None:
        return None
    chosen = chosen or last
    which = "last" if chosen.path == last.path else "best"
    score = f", validation {chosen.score:.3f}" if chosen.score is not None else ""
    other = f"; its last is {last.path.name}" if chosen.path != last.path else ""
    return ModelChoice(
        str(chosen.path), printable(f"{given} is the {which} checkpoint of run {run}: {chosen.path}{score}{other}")
    )
