"""``agl runs``, ``agl show``, ``agl trace``, ``agl config``: what the record and the settings say. Changes nothing."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from agentlightning.cli.output import write, write_json
from agentlightning.errors import ConfigError
from agentlightning.nouns import Mode, Rollout, RunRecord, RunStatus
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.sources import Resolved
from agentlightning.store import Store, open_store
from agentlightning.text import at_home
from agentlightning.views.runs import (
    RunView,
    read_run,
    read_runs,
    render_rollouts,
    render_run,
    render_runs,
    rollouts_json,
    run_json,
    runs_json,
)
from agentlightning.views.screen import Column, Listing, Text


def runs(config: RunConfig, *, json: bool) -> None:
    asyncio.run(_runs(config, json=json))


def show(config: RunConfig, run: str, rollout: str | None, *, step: int | None, full: bool, json: bool) -> None:
    asyncio.run(_show(config, run, rollout, step=step, full=full, json=json))


def trace(
    config: RunConfig, run: str, rollout: str | None, *, attempt: int | None, out: Path | None, json: bool
) -> None:
    if out is not None:
        from agentlightning.views.drawing import check_picture_path

        check_picture_path(out)
    asyncio.run(_trace(config, run, rollout, attempt=attempt, out=out, json=json))


def settings(resolved: Resolved, *, json: bool) -> None:
    values = resolved.values()
    if json:
        write_json({key: {"value": value, "source": resolved.sources[key]} for key, value in values.items()})
        return
    columns = (Column("setting"), Column("value", least=14), Column("source", least=14))
    rows: list[list[Text]] = []
    for key, value in values.items():
        source = resolved.sources[key]
        style = "dim" if source == "default" else ""
        rows.append(
            [Text(key), Text("none" if value is None else orjson.dumps(value).decode(), style), Text(source, style)]
        )
    write(Listing(columns, rows))


async def _runs(config: RunConfig, *, json: bool) -> None:
    url = config.record_url
    if not _exists(url):
        write_json([]) if json else write(f"no runs in {config.output_dir}: `agl train` begins one")
        return
    async with _open(url) as store:
        found = await read_runs(store, at_home(config.output_dir).resolve())
        write_json(runs_json(found)) if json else write(render_runs(found))


async def _show(config: RunConfig, run: str, rollout: str | None, *, step: int | None, full: bool, json: bool) -> None:
    if rollout is not None and step is not None:
        raise ConfigError(f"agl show RUN {rollout} --step {step}: a rollout is of one step; leave one of them out")
    async with _open_run(config, run) as (store, record):
        view = await read_run(store, record, _place(config, run))
        if rollout is not None:
            from agentlightning.views.trace import load_decoder, read_rollout, render_rollout, rollout_json

            found = await read_rollout(store, view, find_rollout(view, rollout))
            decode = load_decoder(view.setting("config", "model", "path"))
            write_json(rollout_json(found, decode)) if json else write(render_rollout(found, decode, full=full))
        elif step is not None:
            of_step = [one for one in view.rollouts if view.step_of(one) == step]
            if not of_step:
                known = sorted({view.step_of(one) for one in view.rollouts})
                raise ConfigError(f"run {record.id} has no rollouts of step {step}; it has steps {_span(known)}")
            write_json(rollouts_json(view, of_step)) if json else write(render_rollouts(view, of_step))
        else:
            write_json(run_json(view)) if json else write(render_run(view))


async def _trace(
    config: RunConfig, run: str, rollout: str | None, *, attempt: int | None, out: Path | None, json: bool
) -> None:
    from agentlightning.views.trace import attempt_of, load_decoder, read_rollout, render_tree, tree_json

    async with _open_run(config, run) as (store, record):
        view = await read_run(store, record)
        found = await read_rollout(
            store, view, find_rollout(view, rollout) if rollout is not None else last_rollout(view)
        )
    chosen = attempt_of(found, attempt)
    decode = load_decoder(view.setting("config", "model", "path"))
    if out is not None:
        from agentlightning.views.drawing import write_picture
        from agentlightning.views.tree import draw_tree

        write_picture(draw_tree(found, chosen, decode), out)
    if json:
        write_json({**tree_json(found, chosen, decode), "picture": str(out) if out is not None else None})
    else:
        write(render_tree(found, chosen, decode) if out is None else f"wrote {out}")


# --------------------------------------------------------------------------- finding things


def _exists(url: str) -> bool:
    return not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).is_file()


@asynccontextmanager
async def _open(url: str) -> AsyncGenerator[Store]:
    store = open_store(url, create=False)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _open_run(config: RunConfig, run: str) -> AsyncGenerator[tuple[Store, RunRecord]]:
    """The run that is meant by an id, a name (its newest), a folder, or ``latest``. Raises ConfigError that names those
    there are."""
    folder = _run_folder(run)
    url = config.record_url if folder is None else _url_of_folder(folder)
    if not _exists(url):
        raise ConfigError(f"no run {run!r}: there are no runs in {config.output_dir} (another place: --output-dir)")
    async with _open(url) as store:
        records = await store.runs()
        yield store, find_run(records, run, folder, str(config.output_dir))


def _place(config: RunConfig, run: str) -> Path:
    """The output folder that was named: that of the run's folder, where this is how it was named."""
    folder = _run_folder(run)
    return folder.parent if folder is not None else at_home(config.output_dir).resolve()


def _run_folder(run: str) -> Path | None:
    """The folder that ``run`` names, if it is one that a run wrote."""
    folder = at_home(run).resolve()
    return folder if (folder / "config.json").is_file() else None


def _url_of_folder(folder: Path) -> str:
    try:
        description = orjson.loads((folder / "config.json").read_bytes())
        url = description["config"]["store"]["url"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{folder / 'config.json'} is not what a run writes: {error}") from error
    return url or f"sqlite:///{folder.parent / 'record.db'}"


def find_run(records: Sequence[RunRecord], run: str, folder: Path | None, place: str) -> RunRecord:
    """``records`` newest first. Raises ConfigError."""
    if folder is not None:
        found = [record for record in records if Path(record.folder).resolve() == folder or record.id == folder.name]
    else:
        found = [
            record
            for record in records
            if run in (record.id, record.name) or (run == "latest" and not _came_to_nothing(record))
        ]
        found = found or [record for record in records if record.id.startswith(run)]
    if found:
        return found[0]
    near = difflib.get_close_matches(run, [key for record in records for key in (record.id, record.name)], n=3)
    known = list(dict.fromkeys(near or [record.id for record in records[:5]]))
    raise ConfigError(
        f"no run {run!r} in {place}; {'nearest' if near else 'newest'}: {', '.join(known) or 'there are none'}"
    )


def _came_to_nothing(record: RunRecord) -> bool:
    """An ``agl dev`` that failed before it had a rollout: not what anybody means by the latest run."""
    return record.status is RunStatus.FAILED and record.config.get("mode") == Mode.DEV


def find_rollout(run: RunView, rollout: str) -> Rollout:
    """The rollout of an id, with or without the run's own in front. Raises ConfigError."""
    found = [one for one in run.rollouts if rollout in (one.id, one.id.removeprefix(f"{run.record.id}-"))]
    if found:
        return found[0]
    short = [one.id.removeprefix(f"{run.record.id}-") for one in run.rollouts]
    near = difflib.get_close_matches(rollout, short, n=3) or short[:3]
    raise ConfigError(
        f"run {run.record.id} has no rollout {rollout!r}; {'e.g. ' + ', '.join(near) if near else 'it has none'}"
    )


def last_rollout(run: RunView) -> Rollout:
    """The rollout that ended last; while none has ended, the one that was started last. Raises ConfigError."""
    begun = [one for one in run.rollouts if one.attempt_id is not None]
    if not begun:
        raise ConfigError(f"run {run.record.id} has no rollout that was begun, so nothing is recorded of it")
    return max(begun, key=lambda one: (one.ended_at is not None, one.ended_at or one.started_at or 0.0))


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps else "none"
