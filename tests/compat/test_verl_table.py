"""The table of verl's keys keeps its word: what is honoured sets something, what is accepted sets nothing, what is
refused is refused."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning import VERL
from agentlightning.errors import ConfigError
from agentlightning.settings.foreign import ForeignSettings
from agentlightning.spellings.verl import ACCEPTED, HONOURED, REFUSED, Takes

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
FILTER, CORRECTION, ROWS = "algorithm.filter_groups", "algorithm.rollout_correction", "agentlightning.trace_aggregator"

SAYS: dict[str, Any] = {
    "data.train_files": "a.parquet", "data.val_files": ["b.parquet"], "data.train_max_samples": 3,
    "data.val_max_samples": 3, "data.seed": 7, "data.train_batch_size": 600, "data.max_prompt_length": 9,
    "data.max_response_length": 9, "algorithm.adv_estimator": "grpo_vectorized",
    "algorithm.norm_adv_by_std_in_grpo": False, f"{FILTER}.enable": True, f"{FILTER}.max_num_gen_batches": 2,
    f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": 3, f"{CORRECTION}.bypass_mode": True,
    f"{ROLLOUT}.n": 5, f"{ROLLOUT}.temperature": 0.5, f"{ROLLOUT}.top_p": 0.5, f"{ROLLOUT}.top_k": 5,
    f"{ROLLOUT}.max_model_len": 99, f"{ROLLOUT}.prompt_length": 9, f"{ROLLOUT}.response_length": 9,
    f"{ROLLOUT}.enable_prefix_caching": False, f"{ROLLOUT}.dtype": "float32", f"{ROLLOUT}.multi_turn.format": "glm",
    f"{ROLLOUT}.engine_kwargs.vllm.tool_call_parser": "glm", f"{ROLLOUT}.val_kwargs.n": 2,
    f"{ROLLOUT}.val_kwargs.temperature": 0.5, f"{ROLLOUT}.val_kwargs.top_p": 0.5, f"{ROLLOUT}.val_kwargs.top_k": 5,
    f"{ACTOR}.ppo_mini_batch_size": 100, f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.optim.lr": 1.0,
    f"{ACTOR}.optim.weight_decay": 1.0, f"{ACTOR}.optim.betas": [0.5, 0.5], f"{ACTOR}.optim.lr_warmup_steps": 5,
    f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.5, f"{ACTOR}.optim.lr_scheduler_type": "cosine",
    f"{ACTOR}.optim.warmup_style": "cosine", f"{ACTOR}.grad_clip": 5.0, f"{ACTOR}.optim.clip_grad": 5.0,
    f"{ACTOR}.clip_ratio": 0.5, f"{ACTOR}.clip_ratio_low": 0.5, f"{ACTOR}.clip_ratio_high": 0.5,
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum", f"{ACTOR}.loss_scale_factor": 9,
    "actor_rollout_ref.model.path": "model", "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "trainer.total_epochs": 5, "trainer.total_training_steps": 8, "trainer.project_name": "p",
    "trainer.experiment_name": "e", "trainer.default_local_dir": "there", "trainer.save_freq": 5,
    "trainer.max_actor_ckpt_to_keep": 5, "trainer.test_freq": 5, "trainer.val_before_train": False,
    "trainer.resume_mode": "auto", "trainer.resume_from_path": "runs/run-1", "trainer.logger": "wandb",
    f"{ROWS}.level": "trajectory", f"{ROWS}.trajectory_max_prompt_length": 9,
    f"{ROWS}.trajectory_max_response_length": 9, "agentlightning.port": 9999,
}  # fmt: skip
"""For each honoured key a value that is no default."""

BESIDE: dict[str, dict[str, Any]] = {
    f"{ACTOR}.ppo_mini_batch_size": {"data.train_batch_size": 300},
    f"{ACTOR}.optim.lr_warmup_steps_ratio": {"trainer.total_training_steps": 8},
    f"{ACTOR}.loss_scale_factor": {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"},
    f"{FILTER}.max_num_gen_batches": {f"{FILTER}.enable": True},
    f"{CORRECTION}.rollout_is_threshold": {f"{CORRECTION}.rollout_is": "token"},
    f"{ROWS}.trajectory_max_prompt_length": {f"{ROWS}.level": "trajectory"},
    f"{ROWS}.trajectory_max_response_length": {f"{ROWS}.level": "trajectory"},
    "trainer.resume_from_path": {"trainer.resume_mode": "resume_path"},
}
"""What else is said where a key is read only beside another."""

ONLY_CHECKED = {f"{ROLLOUT}.val_kwargs.do_sample", "algorithm.adv_estimator"}
"""Keys that say again what another one says, or the one thing there is: another value is refused."""


def meant(config: dict[str, Any]) -> ForeignSettings:
    return VERL({"data.train_batch_size": 8, **config}).foreign_settings()


@pytest.mark.parametrize("key", [entry.key for entry in HONOURED if entry.key not in ONLY_CHECKED])
def test_a_key_that_is_honoured_changes_what_is_meant(key: str) -> None:
    beside = BESIDE.get(key, {})
    without, said = meant(beside if key != "trainer.resume_from_path" else {}), meant({**beside, key: SAYS[key]})
    values = [{ours: value for ours, (value, _) in each.settings.items()} for each in (without, said)]
    assert values[0] != values[1] or (without.train, without.val, without.most_train, without.most_val,
        without.resume, without.notes) != (said.train, said.val, said.most_train, said.most_val, said.resume,
        said.notes)  # fmt: skip
    entry = next(entry for entry in HONOURED if entry.key == key)
    if not entry.ours.startswith("("):
        changed = {ours for ours in values[1] if values[0].get(ours) != values[1][ours]}
        assert changed and changed <= set(entry.ours.split()), f"{key} changes {changed}, and says {entry.ours}"


def some_value(takes: Takes) -> Any:
    """A value of this kind, the first of some that fits."""
    for value in (True, 3, 0.25, "text", ["text"], {"a": 1}):
        try:
            takes.read(value)
        except ValueError:
            continue
        return value
    raise AssertionError(f"no value is {takes.words}")


@pytest.mark.parametrize("accepted", ACCEPTED, ids=lambda accepted: accepted.what)
def test_a_key_that_is_accepted_changes_nothing_but_the_line_that_names_it(accepted: Any) -> None:
    without = meant({})
    for takes, names in accepted.keys.items():
        for name in names.split():
            said = meant({name.replace("**", "any"): some_value(takes)})
            assert said.settings == without.settings and (said.train, said.val, said.resume) == ((), (), None)
            (note,) = said.notes
            assert name.removesuffix(".**").removeprefix("actor_rollout_ref.") in note, name


@pytest.mark.parametrize("entry", REFUSED, ids=lambda entry: entry.key)
def test_a_key_that_is_refused_passes_where_it_says_off_and_nowhere_else(entry: Any) -> None:
    key = entry.key.replace("**", "any")
    for off in (*entry.off, None):
        assert meant({key: off}).settings == meant({}).settings
    value = next(value for value in (True, False, 7, "text", {"a": 1}) if fits(entry, value) and value not in entry.off)
    with pytest.raises(ConfigError) as raised:
        VERL({key: value})
    assert str(raised.value).startswith(f"VERL(config): {key} = ") and str(raised.value).endswith(entry.today)
    with pytest.raises(ConfigError, match="expected "):
        VERL({key: object()} if entry.takes.words != "anything" else {"data.seed": object()})


def fits(entry: Any, value: Any) -> bool:
    try:
        entry.takes.read(value)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"data.max_response_length": 8, f"{ROLLOUT}.response_length": 9}, "are one setting here, and differ"),
        ({f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1}, "is a share of a number of steps that is not said"),
        ({f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.bypass_mode": True}, "and .*bypass_mode = true skips that"),
        ({f"{ACTOR}.loss_scale_factor": 8}, "is read with .*loss_agg_mode = seq-mean-token-sum-norm"),
        ({f"{ROLLOUT}.val_kwargs.do_sample": True}, "means sampled, and .*temperature = 0.0 does not"),
        ({"trainer.resume_mode": "resume_path"}, "needs trainer.resume_from_path"),
        ({"trainer.resume_mode": "auto", "trainer.resume_from_path": "x"}, "is read with trainer.resume_mode=resume_path"),
        ({"trainer.default_local_dir": "${trainer.no_such}"}, r"\$\{trainer.no_such\} is said nowhere"),
        ({"trainer.project_name": "${trainer.project_name}"}, "it refers to itself"),
        ({"trainer": 3}, "trainer: .*it is a table of keys"),
        ({"data.train_batch_size": {"a": 1}}, "data.train_batch_size.a: "),
    ],
)  # fmt: skip
def test_keys_in_conflict_are_one_line(config: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as raised:
        VERL(config)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"config": "verl.yaml"}, r"VERL\(a str\): expected a dict .*read the file and pass what is in it"),
        ({"config": [1]}, r"VERL\(a list\): expected a dict in verl's names"),
        ({"settings": {}}, r"VERL\(settings=...\): no such argument"),
        ({"trainer_cls": object}, r"VERL\(trainer_cls=...\): .*subclass GRPO for another one: leave it out"),
    ],
)
def test_what_is_no_config_is_one_line(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        VERL(**arguments)
