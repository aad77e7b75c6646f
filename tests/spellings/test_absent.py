"""What is not here is refused by name, with what to do today; and a name that gets a part behind it leaves the
table."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import agentlightning
from agentlightning import Trainer
from agentlightning.algorithms import ALGORITHMS, GRPO
from agentlightning.cli.app import app
from agentlightning.errors import ConfigError
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.sources import resolve
from agentlightning.spellings.absent import ABSENT, find, plain, why
from agentlightning.spellings.page import page
from tests.imports import ROOT

NAMES = [name for entry in ABSENT for name in entry.names.split()]


def settings(shape: Any) -> Iterator[str]:
    for name, field in shape.model_fields.items():
        yield name
        if hasattr(field.annotation, "model_fields"):
            yield from settings(field.annotation)


def what_is_here() -> Iterator[str]:
    """Every name that means something at one of the doors."""
    yield from agentlightning.__all__
    yield from settings(RunConfig)
    for name, algorithm in ALGORITHMS.items():
        yield name
        yield from settings(algorithm)
    for function in (Trainer, Trainer.fit, Trainer.dev, Trainer.evaluate):
        yield from (
            name
            for name, p in inspect.signature(function).parameters.items()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        )
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    for name, command in commands.items():
        yield name
        yield from (option for parameter in command.params for option in parameter.opts if option.startswith("-"))


def test_a_name_that_is_here_is_not_in_the_table() -> None:
    """A name with a capital is a class, which is imported; one without is an option, a setting or a command."""
    here = {(name[0].isupper(), plain(name)) for name in what_is_here()}
    assert [name for name in NAMES if (name[0].isupper(), plain(name)) in here] == []


def test_each_name_is_in_the_table_once() -> None:
    assert [name for name, times in Counter(map(plain, NAMES)).items() if times > 1] == []


@pytest.mark.parametrize(
    "name",
    ["lora_rank", "--lora-rank", "LoRA-Rank", "learner.lora_rank", "lora.rank", "lora_rank=8", "actor.model.lora_rank"],
)
def test_a_name_is_found_however_it_is_written(name: str) -> None:
    entry = find(name)
    assert entry is not None and entry.what.startswith("LoRA")


def test_a_name_nobody_looks_for_is_not_found() -> None:
    assert [why(name) for name in ("learner.lr", "no_such", "", ".", "--", "steps", "group_size")] == [None] * 7


def test_an_argument_that_asks_for_nothing_is_no_wish_for_what_is_absent() -> None:
    Trainer(
        model="m",
        tracer=None,
        hooks=[],
        strategy="sm",
        use_vllm=False,
        beta=0.0,
        store={"url": "sqlite:///x.db"},
        dev=False,
    )
    with pytest.raises(ConfigError, match=r"batch_size"):
        Trainer(model="m", batch_size=0)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_refused_as_an_argument_and_as_a_setting(name: str, tmp_path: Path) -> None:
    sentence = why(name)
    assert sentence is not None and "\n" not in sentence and not sentence.endswith(".")
    file = tmp_path / "run.toml"
    file.write_text(f"[learner]\n{name} = 8\n")
    for said, ask in (
        (f"{name} (argument): ", lambda: Trainer(model="m", **{name: 8})),
        (f"learner.{name} (argument): ", lambda: Trainer(model="m", learner={name: 8})),
        (f"learner.{name} (file run.toml line 2): ", lambda: resolve(ALGORITHMS, file)),
        (f"learner.{name} (flag --set): ", lambda: resolve(ALGORITHMS, flags={f"learner.{name}": "8"})),
        (
            f"learner.{name.lower()} (environment AGL_LEARNER__{name.upper()}): ",
            lambda: resolve(ALGORITHMS, env={f"AGL_LEARNER__{name.upper()}": "8"}),
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            ask()
        assert str(refused.value) == said + sentence


def test_a_value_that_is_absent_is_refused_with_its_sentence() -> None:
    said: list[tuple[Callable[[], Any], str]] = [
        (lambda: Trainer(model="m", algorithm="ppo"), "ppo"),
        (lambda: Trainer(model="m", runner={"isolation": "docker"}), "docker"),
        (lambda: Trainer(model="m", config={"algorithm": {"name": "dapo"}}), "dapo"),
        (lambda: GRPO(beta=0.04), "beta"),
        (lambda: GRPO(num_generations=8), "num_generations"),
        (lambda: RunConfig(lora=8), "lora"),
        (lambda: RunConfig(learner={"lora_rank": 8}), "lora_rank"),
        (lambda: Trainer(model="m").fit(lambda task: 1.0, [1], reward_funcs=[len]), "reward_funcs"),
        (lambda: Trainer(model="m").dev(lambda task: 1.0, [1], callbacks=[]), "callbacks"),
    ]
    for ask, name in said:
        with pytest.raises(ConfigError) as refused:
            ask()
        assert (why(name) or "?") in str(refused.value) and "\n" not in str(refused.value), name


@pytest.mark.parametrize("name", [name for name in NAMES if name != name.lower() or name.startswith("emit_")])
def test_every_class_and_function_is_refused_as_an_import(name: str) -> None:
    with pytest.raises(ImportError) as refused:
        exec(f"from agentlightning import {name}")
    assert str(refused.value) == f"agentlightning ({agentlightning.__version__}) has no {name}: {why(name)}"


def test_the_page_is_what_the_tables_say() -> None:
    assert (ROOT / "docs" / "absent.md").read_text() == page(), (
        "python -m agentlightning.spellings.page > docs/absent.md"
    )


def test_on_windows_agents_and_rewards_are_imported_and_what_trains_is_refused_with_what_to_do() -> None:
    """Windows has neither fcntl nor resource."""
    program = (
        "import sys; sys.modules.update(fcntl=None, resource=None, pwd=None, termios=None)\n"
        "from agentlightning import LLM, LitAgent, PromptTemplate, emit_reward, rollout\n"
        "from agentlightning.errors import ConfigError\n"
        "import agentlightning.settings.sources, agentlightning.algorithms; sys.platform = 'win32'\n"
        "try:\n from agentlightning import Trainer\n"
        "except ConfigError as error:\n print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, f"nothing can be trained on win32: {why('win32')}\n"), done.stderr
