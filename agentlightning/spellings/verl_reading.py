"""Reading a verl config: from nested or dotted keys to settings of ours, by the table in verl.py.

Pure: a config in, settings out, each with the key that it came from. Every problem is one line with the whole path of
its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, cast

from agentlightning.errors import ConfigError
from agentlightning.spellings.nearest import nearest
from agentlightning.spellings.verl import (
    ACCEPTED,
    HONOURED,
    REFUSED,
    TABLE,
    TRACKERS,
    Accepted,
    Honoured,
    Json,
    Refused,
    Takes,
)

Entry: TypeAlias = "Honoured | Accepted | Refused"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a config means. ``settings`` are ours by dotted key, each with where it came from; ``train`` and ``val`` are
    files of tasks, ``most_train`` and ``most_val`` how many of them; ``resume`` is None where it is not said, False,
    True for the newest unfinished run if there is one, or a run's id or folder. ``accepted`` are the keys that were
    said and change nothing, a section as one; ``trackers`` what is asked to be
    told and is not."""

    settings: Mapping[str, tuple[Json, str]]
    train: tuple[str, ...]
    val: tuple[str, ...]
    most_train: int | None
    most_val: int | None
    resume: bool | str | None
    accepted: tuple[str, ...]
    trackers: tuple[str, ...]


def read(config: Mapping[str, Json], where: str = "VERL(config)") -> Reading:
    """Raises ConfigError, a line for each problem: keys that there are not, values of the wrong kind, keys that
    contradict each other, and what is not here, with what to do instead."""
    problems: list[str] = []
    flat = _flat(config, problems)
    values = {key: _without_references(key, value, flat, problems) for key, value in flat.items()}
    accepted: dict[str, None] = {}
    said: dict[str, Json] = {}
    for key, value in values.items():
        found = find(key)
        if found is None and value is None and any(name.startswith(f"{key}.") for name in names()):
            continue
        if found is None:
            problems.append(f"{key}: verl has no such key that is known here{_near(key)}")
        elif value is not None:
            entry, takes = found
            read_value = _value(key, value, entry, takes, values, problems)
            if isinstance(entry, Honoured):
                said[key] = read_value
            elif isinstance(entry, Accepted):
                accepted[section(key)] = None
    settings = {} if problems else _settings(_Said(said, problems))
    if problems:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
    return Reading(
        settings,
        tuple(said.get("data.train_files", ())),
        tuple(said.get("data.val_files", ())),
        _positive(said.get("data.train_max_samples")),
        _positive(said.get("data.val_max_samples")),
        _resume(said, where),
        tuple(accepted),
        tuple(name for name in said.get("trainer.logger", ()) if name not in TRACKERS),
    )


def find(key: str) -> tuple[Entry, Takes] | None:
    """The table's entry for a key and what it takes: that of its name, else of a whole section it is in, the narrowest.
    None where the table does not know it."""
    return _by_name().get(_name_of(key))


def section(key: str) -> str:
    """The key, or the section that is known as a whole and that it is in."""
    return _name_of(key).removesuffix(".**")


def _name_of(key: str) -> str:
    known = _by_name()
    if key.rpartition(".")[2] == "_target_":  # what a composed config writes beside its keys
        return "hydra.**"
    parts = key.split(".")
    sections = (".".join([*parts[:count], "**"]) for count in range(len(parts), 0, -1))
    return key if key in known else next((section for section in sections if section in known), key)


@cache
def _by_name() -> dict[str, tuple[Entry, Takes]]:
    found: dict[str, tuple[Entry, Takes]] = {}
    for accepted in ACCEPTED:
        found |= {name: (accepted, takes) for takes, names in accepted.keys.items() for name in names.split()}
    found |= {entry.key: (entry, entry.takes) for entry in HONOURED}
    found |= {entry.key: (entry, entry.takes) for entry in REFUSED}
    return found


def names() -> list[str]:
    """Every key of the table; a section as a whole ends in ``.**``."""
    return list(_by_name())


# --------------------------------------------------------------------------- keys


def _flat(config: Mapping[str, Json], problems: list[str]) -> dict[str, Json]:
    """The values by dotted key, however the config is nested."""
    flat: dict[str, Json] = {}
    for key, value in _leaves(config, ""):
        if key in flat and flat[key] != value:
            problems.append(f"{key} is said twice, {flat[key]!r} and {value!r}: leave one of them out")
        inside = next((other for other in flat if other != key and key.startswith(f"{other}.")), None)
        if inside is not None and flat[inside] is not None and find(inside) is None:
            problems.append(f"{inside} = {_shown(flat[inside])}: it is a table of keys, {key} among them")
        flat[key] = value
    return flat


def _leaves(value: Json, prefix: str) -> Iterator[tuple[str, Json]]:
    found = find(prefix) if prefix else None
    if not isinstance(value, Mapping) or (found is not None and found[1] is TABLE):
        yield prefix, dict(cast("Mapping[str, Json]", value)) if isinstance(value, Mapping) else _plain(value)
        return
    for key, item in cast("Mapping[object, Json]", value).items():
        if not prefix and key in ("defaults", "hydra"):  # how a file was composed
            continue
        yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))


def _plain(value: Json) -> Json:
    """Lists of any library as lists."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in cast("Sequence[Json]", value)]
    return value


def _near(key: str) -> str:
    if any(name.startswith(f"{key}.") for name in _by_name()):
        return ": it is a table of keys, and has to be one"
    near = nearest(key, {name: name for name in _by_name() if not name.endswith(".**")})
    return f"; nearest: {', '.join(near)}" if near else "; docs/verl.md has them all"


_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


def _without_references(key: str, value: Json, flat: Mapping[str, Json], problems: list[str]) -> Json:
    """A value with ``${another.key}`` in place: of the config, else verl's default of it."""
    for _ in range(8):
        if not isinstance(value, str) or (match := _REFERENCE.search(value)) is None:
            return value
        name = match[1]
        if name.startswith("oc.select:"):
            name, _, other = name.removeprefix("oc.select:").partition(",")
        else:
            other = ""
        found = find(name.strip())
        default = found[0].default if found is not None and isinstance(found[0], Honoured) else None
        meant = flat.get(name.strip(), default if default is not None else other.strip() or None)
        if meant is None or ":" in name:
            entry = find(key)
            if entry is not None and isinstance(entry[0], Honoured):
                problems.append(f"{key} = {value!r}: {match[0]} is said nowhere: write the value itself")
            return None
        value = meant if match[0] == value else value.replace(match[0], str(meant))
    problems.append(f"{key} = {value!r}: it refers to itself: write the value itself")
    return None


# --------------------------------------------------------------------------- values


def _value(key: str, value: Json, entry: Entry, takes: Takes, values: Mapping[str, Json], problems: list[str]) -> Json:
    try:
        read_value = takes.read(value)
    except ValueError as error:
        hint = "" if str(error).startswith("could not convert") else str(error)
        problems.append(f"{key} = {_shown(value)}: " + (hint or f"expected {takes.words}"))
        return None
    if isinstance(entry, Refused) and not _is_off(read_value, entry, values):
        what = f"{entry.key.removesuffix('.**')} = " if not entry.key.endswith(".**") else f"{key} = "
        problems.append(f"{what}{_shown(value)}: {entry.today}")
    return read_value


def _is_off(value: Json, entry: Refused, values: Mapping[str, Json]) -> bool:
    if any(value == off and isinstance(value, bool) == isinstance(off, bool) for off in entry.off):
        return True
    if not entry.unless or entry.unless not in values:
        return False
    weight = values[entry.unless]
    return isinstance(weight, int | float) and weight == 0


def _shown(value: Json) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _positive(value: Json) -> int | None:
    return value if value is not None and value > 0 else None


def _resume(said: Mapping[str, Json], where: str) -> bool | str | None:
    mode, path = said.get("trainer.resume_mode"), said.get("trainer.resume_from_path")
    if mode != "resume_path" and path is not None and mode is not None:
        raise ConfigError(
            f"{where}: trainer.resume_from_path = {path!r} is read with trainer.resume_mode=resume_path, and that is "
            f"{mode!r}: leave one of them out"
        )
    if mode == "resume_path" and path is None:
        raise ConfigError(
            f"{where}: trainer.resume_mode=resume_path needs trainer.resume_from_path, the id or the folder of a run"
        )
    return path if path is not None else None if mode is None else mode == "auto"


# --------------------------------------------------------------------------- meanings

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


class _Said:
    """What a config says, and verl's defaults below it. Looking up a value notes the key, so that what follows from it
    knows where it came from."""

    def __init__(self, values: Mapping[str, Json], problems: list[str]) -> None:
        self._values = values
        self._problems = problems
        self._defaults = {entry.key: entry.default for entry in HONOURED if entry.default is not None}

    def has(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Json:
        return self._values.get(key, self._defaults.get(key))

    def source(self, key: str) -> str:
        return f"VERL {key}" if self.has(key) else f"verl's default of {key}"

    def same(self, *keys: str) -> str:
        """The first that is said of some spellings of one thing; one problem where two are said and differ."""
        given = [key for key in keys if self.has(key)]
        if any(self.get(key) != self.get(given[0]) for key in given):
            both = " and ".join(f"{key} = {_shown(self.get(key))}" for key in given)
            self._problems.append(
                f"{both} are one setting here, and differ: make them the same, or leave one of them out"
            )
        return given[0] if given else keys[0]

    def conflict(self, text: str) -> None:
        self._problems.append(text)


def _settings(said: _Said) -> dict[str, tuple[Json, str]]:
    """Each setting that follows from a config, with its source."""
    settings: dict[str, tuple[Json, str]] = {}

    def put(ours: str, key: str, value: Json) -> None:
        if value is not None:
            settings[ours] = (value, said.source(key))

    def take(ours: str, key: str, convert: Callable[[Json], Json] = lambda value: value) -> None:
        value = said.get(key)
        put(ours, key, None if value is None else convert(value))

    # What is compared
    put("algorithm.name", "algorithm.adv_estimator", "grpo")
    take("algorithm.tasks_per_step", "data.train_batch_size")
    take("algorithm.group_size", f"{_ROLLOUT}.n")
    take("algorithm.std", "algorithm.norm_adv_by_std_in_grpo", lambda on: "sample" if on else "none")
    take("algorithm.dynamic_filtering", "algorithm.filter_groups.enable")
    if said.get("algorithm.filter_groups.enable"):
        take("algorithm.filtering_rounds", "algorithm.filter_groups.max_num_gen_batches", _positive)

    # Lengths
    prompt = said.same("data.max_prompt_length", f"{_ROLLOUT}.prompt_length")
    sample = said.same("data.max_response_length", f"{_ROLLOUT}.response_length")
    row = (prompt, sample)
    if said.get("agentlightning.trace_aggregator.level") == "trajectory":
        row = tuple(f"agentlightning.trace_aggregator.trajectory_max_{part}_length" for part in ("prompt", "response"))
    put("algorithm.credit.max_row_length", row[0], sum(said.get(key) for key in row))
    take("sampling.max_tokens", sample)
    take("evaluation.max_tokens", sample)
    take("engine.context_length", f"{_ROLLOUT}.max_model_len")

    # Sampling
    take("sampling.temperature", f"{_ROLLOUT}.temperature")
    take("sampling.top_p", f"{_ROLLOUT}.top_p")
    take("sampling.top_k", f"{_ROLLOUT}.top_k", _vocabulary)
    take("evaluation.rollouts_per_task", f"{_ROLLOUT}.val_kwargs.n")
    take("evaluation.temperature", f"{_ROLLOUT}.val_kwargs.temperature")
    take("evaluation.top_p", f"{_ROLLOUT}.val_kwargs.top_p")
    take("evaluation.top_k", f"{_ROLLOUT}.val_kwargs.top_k", _vocabulary)
    _greedy(said)
    take(
        "model.tool_format",
        said.same(f"{_ROLLOUT}.multi_turn.format", f"{_ROLLOUT}.engine_kwargs.vllm.tool_call_parser"),
    )
    take("model.path", "actor_rollout_ref.model.path")
    take("model.dtype", f"{_ROLLOUT}.dtype")
    take("engine.prefix_cache", f"{_ROLLOUT}.enable_prefix_caching")

    # Learning
    take("learner.minibatches", f"{_ACTOR}.ppo_mini_batch_size", lambda size: _minibatches(said, size))
    take("learner.epochs", f"{_ACTOR}.ppo_epochs")
    take("learner.lr", f"{_ACTOR}.optim.lr")
    take("learner.weight_decay", f"{_ACTOR}.optim.weight_decay")
    take("learner.betas", f"{_ACTOR}.optim.betas")
    take("learner.schedule", said.same(f"{_ACTOR}.optim.lr_scheduler_type", f"{_ACTOR}.optim.warmup_style"))
    take("learner.max_grad_norm", said.same(f"{_ACTOR}.grad_clip", f"{_ACTOR}.optim.clip_grad"))
    take("learner.gradient_checkpointing", "actor_rollout_ref.model.enable_gradient_checkpointing")
    put("learner.warmup_steps", *_warmup(said))
    for ours, key in (("algorithm.clip_low", "clip_ratio_low"), ("algorithm.clip_high", "clip_ratio_high")):
        take(ours, f"{_ACTOR}.{key}" if said.has(f"{_ACTOR}.{key}") else f"{_ACTOR}.clip_ratio")
    _correction(said, put)
    _aggregation(said, sample, put)

    # The run
    put("name", *_name(said))
    take("output_dir", "trainer.default_local_dir")
    take("seed", "data.seed")
    take("epochs", "trainer.total_epochs")
    take("steps", "trainer.total_training_steps")
    take("checkpoint.save_every", "trainer.save_freq", lambda every: max(0, every))
    take("checkpoint.keep", "trainer.max_actor_ckpt_to_keep")
    take("evaluation.every", "trainer.test_freq", lambda every: max(0, every))
    take("evaluation.after", "trainer.test_freq", lambda every: every > 0)
    take("evaluation.before", "trainer.val_before_train")
    take("gateway.port", "agentlightning.port")
    return settings


def _vocabulary(top_k: int) -> int:
    return max(0, top_k)  # verl's -1 is all of it


def _minibatches(said: _Said, size: int) -> int | None:
    """How many of ``size`` tasks a batch is divided into; the default where the batch is not said."""
    batch = said.get("data.train_batch_size")
    return None if batch is None else -(-batch // size)


def _warmup(said: _Said) -> tuple[str, int]:
    steps, ratio = f"{_ACTOR}.optim.lr_warmup_steps", f"{_ACTOR}.optim.lr_warmup_steps_ratio"
    if said.get(steps) >= 0:
        return steps, said.get(steps)
    total = said.get("trainer.total_training_steps")
    if said.get(ratio) > 0 and total is None:
        said.conflict(
            f"{ratio} = {said.get(ratio)} is a share of a number of steps that is not said: give "
            f"trainer.total_training_steps, or {steps} instead"
        )
    return ratio, int(said.get(ratio) * (total or 0))


def _greedy(said: _Said) -> None:
    sampled, temperature = f"{_ROLLOUT}.val_kwargs.do_sample", f"{_ROLLOUT}.val_kwargs.temperature"
    if not said.has(sampled) or said.get(sampled) == (said.get(temperature) > 0):
        return
    meant = "greedy" if not said.get(sampled) else "sampled"
    said.conflict(
        f"{sampled} = {str(said.get(sampled)).lower()} means {meant}, and {temperature} = {said.get(temperature)} does "
        "not: change one of them"
    )


def _correction(said: _Said, put: Callable[[str, str, Json], None]) -> None:
    weighted, bypass = "algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.bypass_mode"
    if said.has(weighted) and said.get(bypass):
        said.conflict(
            f"{weighted} = {said.get(weighted)!r} needs what the learner computes, and {bypass} = true skips that"
        )
    if said.has(weighted):
        put("learner.old_logprobs", weighted, "recompute")
        key = "algorithm.rollout_correction.rollout_is_threshold"
        put("learner.importance_cap", key, said.get(key))
    elif said.get(bypass):
        put("learner.old_logprobs", bypass, "sampler")


def _aggregation(said: _Said, sample: str, put: Callable[[str, str, Json], None]) -> None:
    mode, factor = f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.loss_scale_factor"
    names = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean"}
    put("algorithm.aggregation", mode, names.get(said.get(mode), "dr_grpo"))
    if said.get(mode) == "seq-mean-token-sum":
        put("algorithm.fixed_length", mode, 1)
    elif said.get(mode) == "seq-mean-token-sum-norm":
        key = factor if said.has(factor) else sample
        put("algorithm.fixed_length", key, said.get(key))
    if said.has(factor) and said.get(mode) != "seq-mean-token-sum-norm":
        said.conflict(
            f"{factor} = {said.get(factor)} is read with {mode} = seq-mean-token-sum-norm, and that is {said.get(mode)}"
        )


def _name(said: _Said) -> tuple[str, str | None]:
    """A run is called by its project and its experiment, as far as a folder's name can hold them."""
    keys = [key for key in ("trainer.experiment_name", "trainer.project_name") if said.get(key)]
    words = "-".join(str(said.get(key)) for key in reversed(keys))
    name = re.sub(r"[^\w.+=@ -]+", "-", words).lstrip(".").strip()[:100]
    return (keys or ["trainer.experiment_name"])[0], name or None
