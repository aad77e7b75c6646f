"""A verl config means what verl means by it, or is refused by the whole path of its key."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentlightning import VERL, Trainer
from agentlightning.errors import ConfigError
from agentlightning.spellings.verl import ACCEPTED, HONOURED, NOT_HELD, REFUSED
from agentlightning.spellings.verl_page import page
from agentlightning.spellings.verl_reading import find, names
from agentlightning.templates.formats import FORMATS
from tests.e2e import letters_agent
from tests.imports import ROOT
from tests.tiny import letter_tasks, save_letters

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

MEANINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"data.train_batch_size": 32}, {"algorithm.tasks_per_step": 32}),
    ({"data.train_batch_size": 4, f"{ACTOR}.ppo_mini_batch_size": 32}, {"learner.minibatches": 1}),
    ({"data.train_batch_size": 10, f"{ACTOR}.ppo_mini_batch_size": 4}, {"learner.minibatches": 3}),
    ({"data.max_response_length": 77}, {"sampling.max_tokens": 77, "evaluation.max_tokens": 77}),
    ({f"{ROLLOUT}.n": 4}, {"algorithm.group_size": 4}),
    ({"data.train_batch_size": 2}, {"algorithm.group_size": 1, "epochs": 30, "learner.lr": 1e-6}),
    ({f"{ROLLOUT}.temperature": 0.7, f"{ROLLOUT}.top_k": -1}, {"sampling.temperature": 0.7, "sampling.top_k": 0}),
    ({f"{ROLLOUT}.top_p": 0.9}, {"sampling.top_p": 0.9}),
    ({f"{ROLLOUT}.multi_turn.format": "hermes"}, {"model.tool_format": "hermes"}),
    ({f"{ROLLOUT}.val_kwargs": {"n": 2, "temperature": 0.5}},
     {"evaluation.rollouts_per_task": 2, "evaluation.temperature": 0.5}),
    ({f"{ACTOR}.optim.lr": "3e-5"}, {"learner.lr": 3e-5}),
    ({f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1, "trainer.total_training_steps": 50},
     {"learner.warmup_steps": 5, "steps": 50}),
    ({f"{ACTOR}.optim.weight_decay": 0.5, f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.grad_clip": 0.3},
     {"learner.weight_decay": 0.5, "learner.epochs": 2, "learner.max_grad_norm": 0.3}),
    ({f"{ACTOR}.clip_ratio_low": 0.1, f"{ACTOR}.clip_ratio_high": 0.4},
     {"algorithm.clip_low": 0.1, "algorithm.clip_high": 0.4}),
    ({f"{ACTOR}.clip_ratio": 0.3}, {"algorithm.clip_low": 0.3, "algorithm.clip_high": 0.3}),
    ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"}, {"algorithm.aggregation": "sequence_mean"}),
    ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", "data.max_response_length": 9},
     {"algorithm.aggregation": "dr_grpo", "algorithm.fixed_length": 9}),
    ({"algorithm.norm_adv_by_std_in_grpo": False, "algorithm.adv_estimator": "grpo"}, {"algorithm.std": "none"}),
    ({"trainer.test_freq": 0, "trainer.val_before_train": False, "trainer.save_freq": -1},
     {"evaluation.every": 0, "evaluation.after": False, "evaluation.before": False, "checkpoint.save_every": 0}),
    ({"trainer.test_freq": 5, "trainer.save_freq": 7},
     {"evaluation.every": 5, "evaluation.after": True, "checkpoint.save_every": 7}),
    ({"trainer.project_name": "a/b", "trainer.experiment_name": "c"}, {"name": "a-b-c"}),
    ({"trainer.default_local_dir": "out/${trainer.experiment_name}", "trainer.experiment_name": "c"},
     {"output_dir": "out/c"}),
    ({"agentlightning.port": 9997, "actor_rollout_ref.model.path": "some/model"},
     {"gateway.port": 9997, "model.path": "some/model"}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "meant"), MEANINGS, ids=lambda value: str(next(iter(value))))
def test_a_key_means_what_verl_means_by_it(config: dict[str, Any], meant: dict[str, Any]) -> None:
    trainer = Trainer(algorithm=VERL(config), progress=False)
    values = trainer.resolved.values()
    assert {key: values[key] for key in meant} == meant


def test_a_value_says_which_key_it_came_from_and_the_trainer_holds_over_it() -> None:
    trainer = Trainer(
        algorithm=VERL({f"{ACTOR}": {"optim": {"lr": 1e-3}}}), learner={"weight_decay": 0.5}, progress=False
    )
    sources = trainer.resolved.sources
    assert sources["learner.lr"] == f"VERL {ACTOR}.optim.lr" and trainer.config.learner.weight_decay == 0.5
    assert sources["learner.weight_decay"] == "argument"
    assert sources["epochs"] == "verl's default of trainer.total_epochs"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"data": {"train_batchsize": 3}}, "data.train_batchsize: .*nearest: data.train_batch_size"),
        ({"data": {"train_batch_size": "8"}}, "data.train_batch_size = '8': expected a whole number of at least 1"),
        ({"data": 5}, "data: .*it is a table of keys"),
        ({"algorithm.adv_estimator": "gae"}, "algorithm.adv_estimator = 'gae': there is no critic"),
        ({f"{ACTOR}.use_kl_loss": True}, f"{ACTOR}.use_kl_loss = True: the loss has no KL term"),
        ({f"{ACTOR}.entropy_coeff": 0.01}, f"{ACTOR}.entropy_coeff = 0.01: the loss has no entropy bonus"),
        ({"actor_rollout_ref.model.lora_rank": 8}, "actor_rollout_ref.model.lora_rank = 8: there are no adapters"),
        ({"trainer.logger": ["console", "wandbb"]}, "trainer.logger = .*expected one or a list of console"),
        ({"data": {"max_response_length": 3}, "data.max_response_length": 4}, "said twice, 3 and 4"),
        ({f"{ROLLOUT}.val_kwargs": {"do_sample": False, "temperature": 1}}, "means greedy, and"),
    ],
)
def test_what_cannot_be_is_one_line_with_the_whole_path_of_its_key(config: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as raised:
        VERL(config)
    assert str(raised.value).count("\n") == 0


def test_values_that_mean_off_pass_and_what_changes_nothing_is_said() -> None:
    verl = VERL(
        {
            f"{ACTOR}": {
                "use_kl_loss": False,
                "kl_loss_coef": 0.0,
                "entropy_coeff": 0,
                "fsdp_config": {"param_offload": True},
            },
            f"{ROLLOUT}": {"name": "vllm", "gpu_memory_utilization": 0.6},
            "trainer": {"critic_warmup": 0, "logger": ["console"], "nnodes": 1},
        }
    )
    (note,) = verl.foreign_settings().notes
    assert "rollout.name" in note and "actor.fsdp_config.param_offload" in note and "trainer.nnodes" in note
    assert VERL({f"{ACTOR}": {"use_kl_loss": True, "kl_loss_coef": 0}}).reading is not None


def test_without_a_config_it_is_this_packages_own_defaults() -> None:
    assert Trainer(algorithm=VERL(), progress=False).resolved == Trainer(progress=False).resolved


def test_each_key_stands_in_the_table_once_and_formats_are_those_there_are() -> None:
    listed = [entry.key for entry in (*HONOURED, *REFUSED)]
    listed += [name for entry in (*ACCEPTED, NOT_HELD) for keys in entry.keys.values() for name in keys.split()]
    assert len(set(listed)) == len(listed) and set(names()) == set(listed)
    format_ = find(f"{ROLLOUT}.multi_turn.format")
    assert format_ is not None and all(format_[1].read(name) == name for name in FORMATS)


def test_a_run_from_a_config_validates_nothing_without_tasks_to_validate(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "data": {"train_batch_size": 2, "max_prompt_length": 64, "max_response_length": 2, "truncation": "error"},
        "actor_rollout_ref": {
            "model": {"path": str(save_letters(tmp_path / "model")), "use_remove_padding": True},
            "rollout": {"name": "vllm", "n": 4, "tensor_model_parallel_size": 1},
            "actor": {"ppo_mini_batch_size": 8, "optim": {"lr": 5e-3}, "use_kl_loss": False, "entropy_coeff": 0},
        },
        "trainer": {
            "total_training_steps": 1,
            "test_freq": 5,
            "default_local_dir": str(tmp_path / "out"),
            "logger": [],
        },
    }
    result = Trainer(algorithm=VERL(config), threads=1, progress=False).fit(letters_agent.graded, letter_tasks(4))
    assert len(result.history) == 1 and not result.validations and result.folder.parent == tmp_path / "out"


def test_the_command_trains_from_words_with_files_of_tasks(tmp_path: Path) -> None:
    """In a process of its own, with tasks of training and validation in Parquet."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, count in (("train", 6), ("val", 2)):
        parquet.write_table(pyarrow.Table.from_pylist(letter_tasks(count)), tmp_path / f"{name}.parquet")
    words = [
        f"data.train_files=[{tmp_path / 'train.parquet'}]", f"data.val_files={tmp_path / 'val.parquet'}",
        "data.train_batch_size=3", f"{ROLLOUT}.n=2", f"{ROLLOUT}.name=vllm", f"{ACTOR}.optim.lr=5e-3",
        f"actor_rollout_ref.model.path='{save_letters(tmp_path / 'model')}'", "data.max_response_length=2",
        "trainer.logger=['console','wandb']", "+trainer.total_epochs=2", "trainer.test_freq=1",
        "trainer.val_before_train=False", "trainer.experiment_name=null", f"trainer.default_local_dir={tmp_path / 'out'}",
    ]  # fmt: skip
    done = ran(f"{Path(letters_agent.__file__)}:graded", *words)
    assert done.returncode == 0, done.stderr
    (folder,) = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    result = orjson.loads((folder / "result.json").read_bytes())
    assert len(result["history"]) == 4 and len(result["validations"]) == 4
    assert "nothing is sent to wandb" in done.stdout + done.stderr and "rollout.name" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data.train_batch_size=4"], "no agent: none joins from elsewhere"),
        (["a.py:agent", "b.py:agent"], "a.py:agent and b.py:agent: one agent is trained"),
        (["a.py:agent", "data.train_batch_size=[4]"], "data.train_batch_size = [4]: expected a whole number"),
        (["a.py:agent", "data.no_such=4"], "data.no_such: verl has no such key that is known here"),
        (["a.py:agent", "--config-path=conf"], "--config-path=conf: settings are key=value"),
    ],
)
def test_what_the_command_cannot_do_is_one_line(words: list[str], says: str) -> None:
    done = ran(*words)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and says in done.stderr


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentlightning.verl", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs" / "verl.md").read_text() == page(), (
        "python -m agentlightning.spellings.verl_page > docs/verl.md"
    )


def test_verl_is_where_programs_look_for_it() -> None:
    for path in ("agentlightning", "agentlightning.algorithm", "agentlightning.algorithm.verl", "agentlightning.verl"):
        assert import_module(path).VERL is VERL
