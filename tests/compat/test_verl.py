"""A verl config means what verl means by it, or is refused by the whole path of its key."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import OpenAI

from agentlightning import LLM, VERL, FitResult, Trainer, Triplet
from agentlightning.errors import ConfigError, TaskError
from agentlightning.nouns import RunStatus
from agentlightning.spellings.verl import ACCEPTED, HONOURED, REFUSED
from agentlightning.spellings.verl_page import page
from agentlightning.spellings.verl_reading import find, names
from agentlightning.templates.formats import FORMATS
from tests.e2e import letters_agent
from tests.imports import ROOT
from tests.tiny import LETTERS, letter_tasks, save_letters

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

MEANINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"data.train_batch_size": 32}, {"algorithm.tasks_per_step": 32}),
    ({"data.train_batch_size": 4, f"{ACTOR}.ppo_mini_batch_size": 32}, {"learner.minibatches": 1}),
    ({"data.train_batch_size": 10, f"{ACTOR}.ppo_mini_batch_size": 4}, {"learner.minibatches": 3}),
    ({"data.max_response_length": 77}, {"sampling.max_tokens": 77, "evaluation.max_tokens": 77}),
    ({"data.max_prompt_length": 100, "data.max_response_length": 50}, {"algorithm.credit.max_row_length": 150}),
    ({f"{ROLLOUT}.prompt_length": 100, f"{ROLLOUT}.response_length": 50},
     {"algorithm.credit.max_row_length": 150, "sampling.max_tokens": 50}),
    ({"data.max_prompt_length": 100, "agentlightning.trace_aggregator": {"level": "trajectory",
      "trajectory_max_prompt_length": 300, "trajectory_max_response_length": 700}},
     {"algorithm.credit.max_row_length": 1000}),
    ({"agentlightning.trace_aggregator.level": "transition"}, {"algorithm.credit.max_row_length": 1024}),
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
    own = Trainer(algorithm=VERL(), progress=False).resolved.values()
    assert own.pop("algorithm.credit.scheme") == "mixed"
    default = Trainer(progress=False).resolved.values()
    assert {key for key in default if default[key] != own.get(key)} == {"algorithm.credit.scheme"}


def test_each_key_stands_in_the_table_once_and_formats_are_those_there_are() -> None:
    listed = [entry.key for entry in (*HONOURED, *REFUSED)]
    listed += [name for entry in ACCEPTED for keys in entry.keys.values() for name in keys.split()]
    assert len(set(listed)) == len(listed) and set(names()) == set(listed)
    format_ = find(f"{ROLLOUT}.multi_turn.format")
    assert format_ is not None and all(format_[1].read(name) == name for name in FORMATS)


def config_of_a_program(model: Path, **data: Any) -> dict[str, Any]:
    """The keys that every program for this surface sets, as these write them."""
    return {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {"train_batch_size": 3, "max_prompt_length": 64, "max_response_length": 2, "truncation": "error", **data},
        "actor_rollout_ref": {
            "rollout": {
                "name": "vllm", "n": 2, "tensor_model_parallel_size": 1, "gpu_memory_utilization": 0.6,
                "log_prob_micro_batch_size_per_gpu": 4, "multi_turn": {"format": "hermes"},
                "engine_kwargs": {"vllm": {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}},
            },
            "actor": {
                "ppo_mini_batch_size": 32, "ppo_micro_batch_size_per_gpu": 4, "optim": {"lr": 5e-3},
                "use_kl_loss": False, "kl_loss_coef": 0.0, "entropy_coeff": 0,
                "clip_ratio_low": 0.2, "clip_ratio_high": 0.3,
                "fsdp_config": {"param_offload": True, "optimizer_offload": True},
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": 8, "fsdp_config": {"param_offload": True}},
            "model": {"path": str(model), "use_remove_padding": True, "enable_gradient_checkpointing": True},
        },
        "trainer": {
            "n_gpus_per_node": 1, "nnodes": 1, "val_before_train": True, "critic_warmup": 0,
            "logger": ["console", "wandb"], "project_name": "letters", "experiment_name": "small",
            "total_epochs": 1, "save_freq": 64, "test_freq": 1,
        },
    }  # fmt: skip


def test_the_config_of_a_program_trains_as_it_is(tmp_path: Path) -> None:
    config = config_of_a_program(save_letters(tmp_path / "model"))
    trainer = Trainer(algorithm=VERL(config), n_workers=2, threads=1, output_dir=tmp_path, progress=False)
    result = trainer.fit(letters_agent.graded, letter_tasks(6), val_dataset=letter_tasks(2))
    assert len(result.history) == 2 and len(result.validations) == 3 and result.run_id.startswith("letters-small")
    assert result.ledger is not None and result.ledger.trained > 0
    assert result.ledger.compared == {"rollouts of a task": result.ledger.compared["rollouts of a task"]}


def test_the_tasks_of_a_config_are_read_where_none_are_passed(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = {name: str(tmp_path / f"{name}.parquet") for name in ("train", "val")}
    for file, count in zip(files.values(), (6, 2), strict=True):
        parquet.write_table(pyarrow.Table.from_pylist(letter_tasks(count)), file)
    config = config_of_a_program(
        save_letters(tmp_path / "model"), train_files=files["train"], val_files=[files["val"]], train_max_samples=3
    )
    result = Trainer(algorithm=VERL(config), threads=1, output_dir=tmp_path, progress=False).fit(letters_agent.graded)
    assert len(result.history) == 1 and [validation.rollouts for validation in result.validations] == [2, 2]
    with pytest.raises(TaskError, match="train_dataset"):
        Trainer(algorithm=VERL({}), model=tmp_path / "model", progress=False).fit(letters_agent.graded)


@pytest.mark.parametrize("test_freq", [0, 5])
def test_without_tasks_to_validate_nothing_is_validated_whatever_test_freq_says(tmp_path: Path, test_freq: int) -> None:
    config = config_of_a_program(save_letters(tmp_path / "model"))
    config["trainer"]["test_freq"] = test_freq
    trainer = Trainer(algorithm=VERL(config), steps=1, threads=1, output_dir=tmp_path, progress=False)
    result = trainer.fit(letters_agent.graded, letter_tasks(4))
    assert len(result.history) == 1 and not result.validations


def test_one_task_of_hundreds_of_rows_is_compared_with_itself(tmp_path: Path) -> None:
    """As of a game: no `n`, a batch of one task that is smaller than a mini-batch, a reward for each row."""
    config = config_of_a_program(save_letters(tmp_path / "model"), train_batch_size=1)
    del config["actor_rollout_ref"]["rollout"]["n"]
    trainer = Trainer(algorithm=VERL(config), threads=1, output_dir=tmp_path, progress=False)
    result = trainer.fit(game, [{"calls": 200}])
    (step,), ledger = result.history, result.ledger
    assert ledger is not None and ledger.compared == {"calls of a task": 200} and ledger.off_record == 0
    assert step["rollouts"] == {"succeeded": 1} and ledger.trained == ledger.sampled > 0


def test_a_single_rollout_for_each_task_is_compared_over_the_batch(tmp_path: Path) -> None:
    config = config_of_a_program(save_letters(tmp_path / "model"), train_batch_size=8)
    config["actor_rollout_ref"]["rollout"]["n"] = 1
    trainer = Trainer(algorithm=VERL(config), threads=1, output_dir=tmp_path, progress=False)
    ledger = trainer.fit(letters_agent.graded, letter_tasks(8)).ledger
    assert ledger is not None and ledger.compared == {"rollouts of the batch": 8} and ledger.trained == ledger.sampled


def test_resume_mode_auto_goes_on_where_there_is_something_to_go_on_with(tmp_path: Path) -> None:
    config = config_of_a_program(save_letters(tmp_path / "model"))
    config["trainer"] |= {"resume_mode": "auto", "default_local_dir": str(tmp_path / "out"), "test_freq": 0}

    def fit(**settings: Any) -> FitResult:
        trainer = Trainer(algorithm=VERL(config), threads=1, progress=False, **settings)
        return trainer.fit(letters_agent.graded, letter_tasks(6))

    stopped = fit(max_time=0.001)
    assert stopped.status is RunStatus.STOPPED
    done = fit()
    assert done.run_id == stopped.run_id and done.status is RunStatus.FINISHED and len(done.history) == 2
    assert fit().run_id != done.run_id, "a finished run is no run to go on with"


def game(task: dict[str, int], llm: LLM) -> list[Triplet]:
    """Every call is a row, with a reward of its own."""
    client = OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0)

    def play(turn: int) -> Triplet:
        said = client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": LETTERS[turn % len(LETTERS)]}], max_tokens=1,
            extra_body={"return_token_ids": True},
        ).model_dump()  # fmt: skip
        prompt, response = said["prompt_token_ids"], said["choices"][0]["token_ids"]
        return Triplet(prompt={"token_ids": prompt}, response={"token_ids": response}, reward=float(turn % 3))

    with ThreadPoolExecutor(8) as seats:
        return list(seats.map(play, range(task["calls"])))


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
