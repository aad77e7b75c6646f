"""What a user hands over: each argument of each entry with wrong values is one line that names it, what it takes, what
it got and what would do."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning import GRPO, LLM, LitAgent, PromptTemplate, RunConfig, Trainer
from agentlightning.errors import ConfigError
from agentlightning.records.progress import SilentView
from agentlightning.run.arguments import ARGUMENTS, DATA_SETS
from agentlightning.run.trainer import Trainer as OurTrainer
from agentlightning.settings.fields import LearnerConfig
from agentlightning.spellings.nearest import edits, nearest
from agentlightning.text import at_home

ENTRIES: dict[str, Callable[..., Any]] = {
    "Trainer": Trainer,
    "fit": Trainer.fit,
    "train": Trainer.train,
    "evaluate": Trainer.evaluate,
    "validate": Trainer.validate,
    "dev": Trainer.dev,
}
TASKS = [{"q": 1}]


def agent(task: Any, llm: Any) -> float:
    return 1.0


async def coroutine_agent(task: Any, llm: Any) -> float:
    return 1.0


class Agent(LitAgent):
    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return 1.0


def enter(entry: str, *args: Any, **arguments: Any) -> Any:
    """Calls the entry as a user would, on a trainer whose model is not there: nothing is ever loaded."""
    if entry == "Trainer":
        return Trainer(*args, **{"model": "nowhere/at/all", **arguments})
    called = getattr(Trainer(model="nowhere/at/all", progress=False), entry)(*args, **arguments)
    return asyncio.run(called) if inspect.isawaitable(called) else called


def refusal(entry: str, *args: Any, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        enter(entry, *args, **arguments)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    return str(refused.value)


def test_every_argument_of_every_entry_is_in_the_table() -> None:
    taken = {
        name
        for entry in (OurTrainer.__init__, *(getattr(OurTrainer, name) for name in list(ENTRIES)[1:]))
        for name, parameter in inspect.signature(entry).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    assert taken == {*ARGUMENTS, *DATA_SETS}


class Module:
    """Stands for a model that is loaded: of torch, by the name of its module."""

    __module__ = "torch.nn"

    def __call__(self) -> None: ...


class Watching(SilentView):
    phase = None


def backwards(output: Any, task: Any) -> float:
    return 1.0


def also_backwards(answer: Any, example: Any, attempt: Any) -> float:
    return 1.0


def out_of_order(task: Any, attempt: Any, output: Any) -> float:
    return 1.0


def one(task: Any) -> float:
    return 1.0


def yields(task: Any, output: Any):
    yield 1.0


COUNTS = [("8", "'8'"), (0, "0"), (-1, "-1"), (True, "True"), (2.0, "2.0"), ([4], r"\[4\]"), (float("nan"), "nan")]
WRONG: list[tuple[str, str, Any, str]] = [
    *(("Trainer", name, value, rf"={said}\): expected a whole number, at least 1: {name}=\d+") for name in ("n_runners",
    "n_workers", "num_epochs", "max_tasks", "max_rollouts") for value, said in COUNTS),
    *(("Trainer", "port", value, r"\): expected a whole number from 0 "
                                 r".* to 65535: port=8000") for value in ("8000", -1, 65536, True, 1.5)),
    ("Trainer", "algorithm", "grpo", r"='grpo'\): expected an algorithm: algorithm=GRPO\(group_size=8\)"),
    ("Trainer", "algorithm", GRPO, r"=GRPO\): expected an algorithm: pass an instance, algorithm=GRPO\(\)"),
    ("Trainer", "algorithm", {"name": "grpo"}, r"pass config=\{'algorithm'"),
    ("Trainer", "model", 3, r"=3\): expected a Hugging Face folder or hub id"),
    ("Trainer", "model", "", r"=''\): expected a Hugging Face folder"),
    ("Trainer", "model", b"x", r"=b'x'\): expected a Hugging Face folder"),
    ("Trainer", "model", Module(), r"=<a torch.Module>\): .*model.save_pretrained\(FOLDER\)"),
    ("Trainer", "model", LLM(endpoint="http://h/v1", model="m"), "an LLM is a resource"),
    ("Trainer", "config", 3, r"=3\): expected a RunConfig, settings by section, or the path of a TOML file"),
    ("Trainer", "config", [("steps", 1)], "expected a RunConfig"),
    ("Trainer", "config", LearnerConfig(), "expected a RunConfig"),
    ("Trainer", "output_dir", 3, r"=3\): expected text or a Path"),
    ("Trainer", "output_dir", " ", "expected text or a Path"),
    ("Trainer", "output_dir", "a\0b", "expected text or a Path"),
    ("Trainer", "resources", [LLM()], "expected resources by name"),
    ("Trainer", "resources", LLM(), r"give it a name, resources=\{'main_llm': LLM"),
    ("Trainer", "initial_resources", PromptTemplate("x"), r"resources=\{'prompt_template'"),
    ("Trainer", "resources", {1: LLM()}, "expected resources by name"),
    ("Trainer", "resources", {"x": {"deep": [{1, 2}]}}, r"resources\['x'\]\['deep'\]\[0\] is a set: .*an LLM, a "
                                                        r"PromptTemplate or a JSON value"),
    ("Trainer", "resources", {"x": object()}, r"resources\['x'\] is an object"),
    ("Trainer", "grader", 3, "pass the function itself, without calling it"),
    ("Trainer", "grader", "grade.py:fn", "a path is for the command line"),
    ("Trainer", "grader", Agent, r"it is a class: pass an instance, grader=Agent\(\)"),
    ("Trainer", "grader", backwards, r"=backwards\): .*the task first: def grader\(task, output\)"),
    ("Trainer", "grader", also_backwards, r"def grader\(example, answer, attempt\)"),
    ("Trainer", "grader", out_of_order, r"def grader\(task, output, attempt\)"),
    ("Trainer", "grader", one, r"is called with \(task, output, attempt\) or \(task, output\)"),
    ("Trainer", "grader", yields, "it is a generator"),
    ("Trainer", "progress", "no", r"='no'\): expected True, False, or an object with the methods of Progress"),
    ("Trainer", "progress", 1, "expected True, False"),
    ("Trainer", "progress", Watching(), "it lacks phase"),
    ("Trainer", "progress", SilentView, "expected True, False"),
    *((entry, name, value, said) for entry, name in (("Trainer", "train_dataset"), ("Trainer", "val_dataset"), ("fit",
    "train_dataset"), ("fit", "val_dataset"), ("fit", "val_data"), ("evaluate", "tasks"), ("validate", "tasks"), ("dev",
    "tasks")) for value, said in (
        (3, "is an int: expected a list"),
        ({"q": 1}, "is a dict"),
        ({"q"}, r"is a set: .*sorted\("),
        ((x for x in TASKS), r"is a generator: .*list\("),
        (pandas.DataFrame(TASKS), r'df.to_dict\("records"\)'),
        (pyarrow.table({"q": [1]}), r"table.to_pylist\(\)"),
        ('{"q": 1}', "is JSON as text"),
        (b"x", "is a bytes"),
        (list, "is a type"),
        ("ftp://host/x.jsonl", "is a URL"),
    )),
    *((entry, name, value, said) for entry, name in (("fit", "train_dataset"), ("fit", "val_dataset"), ("evaluate",
    "tasks"), ("dev", "tasks")) for value, said in (
        ([], "is empty"),
        ([None], r"\[0\] is None"),
        ([{"when": {1}}], r"\[0\]\['when'\] is a set"),
        ("nowhere.jsonl", "nowhere.jsonl cannot be read"),
        (Path("nowhere.csv"), "nowhere.csv cannot be read"),
    )),
    *((entry, "agent", value, said) for entry in ("fit", "train", "evaluate", "dev") for value, said in (
        (None, r"=None\): .*the agent was called: pass it itself"),
        (1.0, r"=1.0\): .*the agent was called"),
        (TASKS, "the agent comes first, then the tasks"),
        ({"q": 1}, "the agent comes first"),
        (Path("agent.py"), "pass 'agent.py:agent'"),
        (Module(), r"the model goes to Trainer\(model=FOLDER\)"),
        (LLM(), "expected a function of a task"),
        (Agent, r"is a class: pass an instance of it, such as agent = Agent\(\)"),
        ("agent.py", "expected FILE.py:name"),
        ("nowhere.py:agent", "cannot be read"),
    )),
    *(("fit", "resume", value, r"\): expected True, False, or the id of a run: "
                               r"resume=True") for value in (1, "", ["run"])),
    ("fit", "resume", Path("runs/run-1"), "pass the run's id, resume='run-1'"),
    ("train", "resume", 3, "expected True, False, or the id of a run"),
    *(("dev", "n", value, rf"={said}\): expected a whole number, at least 1: dev\(agent, "
                          rf"tasks, n=3\)") for value, said in COUNTS),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "name", "value", "says"), WRONG)
def test_a_wrong_value_is_one_line_with_its_argument_and_what_would_do(
    entry: str, name: str, value: Any, says: str
) -> None:
    others: dict[str, Any] = {} if entry == "Trainer" else {"agent": agent}
    if entry in ("fit", "dev") and name != "tasks":
        others["train_dataset" if entry == "fit" else "tasks"] = TASKS
    said = refusal(entry, **{**others, name: value})
    assert re.search(says, said), said
    if name != "agent":
        assert name in said


def test_an_agent_that_was_called_instead_of_passed_is_told_so() -> None:
    called = coroutine_agent(1, 2)
    assert "the agent was called" in refusal("fit", called, TASKS)
    assert inspect.getcoroutinestate(called) == inspect.CORO_CLOSED, "nobody waits for it"


NAMES = [
    ("Trainer", "n_runner", "did you mean n_runners=...?"),
    ("Trainer", "n_wrokers", "did you mean n_workers=...?"),
    ("Trainer", "lrr", 'did you mean learner={"lr": ...}?'),
    ("Trainer", "lr", 'did you mean learner={"lr": ...}?'),
    ("Trainer", "group_size", "did you mean algorithm=GRPO(group_size=...)?"),
    ("Trainer", "gruop_size", "did you mean algorithm=GRPO(group_size=...)?"),
    ("Trainer", "temprature", 'did you mean sampling={"temperature": ...} or evaluation={"temperature": ...}?'),
    ("Trainer", "train_datset", "did you mean train_dataset=...?"),
    ("Trainer", "ouput_dir", "did you mean output_dir=...?"),
    ("Trainer", "step", "did you mean steps=...?"),
    ("Trainer", "qqqqqq", "it takes algorithm, model, "),
    ("Trainer", "tasks", "did you mean train_dataset=...?"),
    ("Trainer", "data", "did you mean train_dataset=...?"),
    ("fit", "val", "did you mean val_dataset=...?"),
    ("fit", "tasks", "did you mean train_dataset=...?"),
    ("evaluate", "val_dataset", "did you mean tasks=...?"),
    ("fit", "epochs", "did you mean Trainer(epochs=...)?"),
    ("fit", "val_datset", "did you mean val_dataset=...?"),
    ("fit", "resum", "did you mean resume=...?"),
    ("fit", "n_runners", "did you mean Trainer(n_runners=...)?"),
    ("fit", "grader", "did you mean Trainer(grader=...)?"),
    ("dev", "nn", "it takes agent, tasks, n"),
    ("evaluate", "task", "did you mean tasks=...?"),
    ("train", "resumee", "did you mean resume=...?"),
]


@pytest.mark.parametrize(("entry", "name", "says"), NAMES)
def test_a_misspelt_name_gets_the_nearest_over_all_that_are_valid_there(entry: str, name: str, says: str) -> None:
    said = refusal(entry, **({} if entry == "Trainer" else {"agent": agent}), **{name: 1})
    assert f"({name}=...): no such argument" in said and says in said


@pytest.mark.parametrize(
    ("entry", "arguments", "says"),
    [
        ("fit", {"lora": True}, "fit(lora=...): there are no adapters"),
        (
            "Trainer",
            {"agent": agent},
            "Trainer(agent=...): it is an argument of fit, dev or evaluate: Trainer(...).fit(agent, tasks)",
        ),
        ("Trainer", {"resume": True}, "Trainer(...).fit(agent, tasks, resume=True)"),
        (
            "Trainer",
            {"callbaks": []},
            "Trainer(callbaks=...): did you mean callbacks? there are none: Trainer(hooks=...)",
        ),
        ("fit", {"reward_fnc": agent}, "fit(reward_fnc=...): did you mean reward_fn"),
        ("Trainer", {"backend": "vllm"}, "Trainer(backend='vllm'): sampling is by the engine inside the process"),
        ("Trainer", {"config": {"n_runner": 3}}, "n_runner (argument): no such setting; nearest: n_runners=..."),
        ("Trainer", {"reward_fn": agent}, "what scores from outside is grader="),
        ("Trainer", {"learner": {"learning_rate": 1e-5}}, "learner.lr"),
        (
            "Trainer",
            {"learner": {"lrr": 1e-5}},
            'learner.lrr (argument): no such setting; nearest: learner={"lr": ...}',
        ),
        (
            "Trainer",
            {"learner": {"lr": "x"}},
            'learner.lr = "x" (argument): allowed is a number > 0, e.g. learner={"lr": 2e-05}',
        ),
        ("Trainer", {"learner": 3}, "is a table of settings, not a value"),
        ("Trainer", {"name": object()}, "name (argument): is an object; allowed is text, e.g. name='run'"),
        ("Trainer", {"seed": "7"}, 'seed = "7" (argument): allowed is a whole number, e.g. seed=0'),
        ("Trainer", {"seed": True}, "seed = true (argument): allowed is a whole number"),
        (
            "Trainer",
            {"sampling": {"max_tokens": [1]}},
            'allowed is a whole number >= 1, e.g. sampling={"max_tokens": 256}',
        ),
        ("Trainer", {"config": {3: 1}}, "3 (argument): no such setting"),
        ("Trainer", {"config": {"steps": 0}}, "steps = 0 (argument): allowed is a whole number >= 1"),
        ("Trainer", {"config": "nowhere.toml"}, "nowhere.toml: the settings cannot be read"),
        ("Trainer", {"epochs": 1, "num_epochs": 2}, "epochs and num_epochs are the same setting"),
    ],
)
def test_settings_and_what_is_not_there_are_refused_as_everywhere(
    entry: str, arguments: dict[str, Any], says: str
) -> None:
    assert says in refusal(entry, *([] if entry == "Trainer" else [agent]), **arguments)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: GRPO(group_size="8"),
            'group_size = "8" (GRPO(...)): allowed is a whole number >= 1, e.g. group_size=8',
        ),
        (lambda: GRPO(group_size=True), "group_size = true (GRPO(...)): allowed is a whole number >= 1"),
        (lambda: GRPO(gruop_size=4), "gruop_size (GRPO(...)): no such setting; did you mean group_size=...?"),
        (lambda: GRPO(lr=1e-5), 'lr (GRPO(...)): no such setting; did you mean Trainer(learner={"lr": ...})?'),
        (lambda: GRPO(std=None), "std = null (GRPO(...)): allowed is one of sample, population, none"),
        (lambda: GRPO(kl_coef=0.1), "kl_coef (GRPO(...)): the loss has no KL term"),
        (lambda: GRPO(8), "GRPO(...): takes its settings by name"),
        (lambda: RunConfig(lr=1), 'did you mean learner={"lr": ...}?'),
        (
            lambda: RunConfig(learner={"lr": "x"}),
            'learner.lr = "x" (RunConfig(...)): allowed is a number > 0, e.g. learner={"lr": 2e-05}',
        ),
        (lambda: LearnerConfig(lr=float("nan")), "lr"),
    ],
)
def test_a_settings_class_refuses_in_one_line_what_a_file_may_not_say(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "args", "arguments", "says"),
    [
        ("Trainer", (GRPO(),), {}, "Trainer: takes every argument by name, and got 1"),
        ("fit", (), {}, "fit: agent is missing, a function of a task"),
        (
            "fit",
            (agent, TASKS, TASKS, True),
            {},
            "fit: takes 3 by position (agent, train_dataset, val_dataset), and got 4",
        ),
        ("fit", (agent, TASKS), {"train_dataset": TASKS}, "train_dataset is given twice"),
        ("dev", (agent, 3), {}, "tasks is an int"),
    ],
)
def test_arguments_in_the_wrong_place_are_one_line(
    entry: str, args: tuple[Any, ...], arguments: dict[str, Any], says: str
) -> None:
    assert says in refusal(entry, *args, **arguments)


def test_a_refusal_leaves_as_its_sentence_without_the_frames_it_came_through() -> None:
    for call in (lambda: Trainer(n_runners="8"), lambda: Trainer(model="m").fit(agent, 3)):  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError) as refused:
            call()
        assert len(refused.traceback) <= 3


def test_the_home_of_a_user_who_is_not_there_is_no_defect() -> None:
    assert "cannot be read" in refusal("fit", "~no-such-user/agent.py:agent", TASKS)
    assert at_home("~no-such-user/m") == Path("~no-such-user/m") and at_home("~") == Path.home()


def test_what_is_right_is_taken() -> None:
    """The forms that the pages and other people's programs use."""
    made = Trainer(
        model=Path("m"), algorithm=GRPO(group_size=4), n_runners=2, output_dir=Path("runs"),
        learner=LearnerConfig(lr=1e-4), port=0, max_tasks=3,
        resources={"llm": LLM(), "x": [1, (2,)]}, grader=lambda task, output: 1.0, progress=SilentView(),
        train_dataset="train.jsonl", sampling={"top_p": 1},
    )  # fmt: skip
    assert made.config.learner.lr == 1e-4 and made.config.runner.n_runners == 2 and made.config.model.path == "m"
    for grader in (
        lambda *a: 1.0,
        lambda task, output, attempt: 1.0,
        lambda sample, out, **more: 1.0,
        lambda t, o, a=None: 1.0,
        max,
    ):
        Trainer(grader=grader)
    assert Trainer(config={"runner": {"n_runners": 3}}, n_workers=5).config.runner.n_runners == 5


@given(st.text("abcd_", max_size=8), st.text("abcd_", max_size=8))
def test_mistakes_of_typing_are_counted_both_ways_alike(a: str, b: str) -> None:
    assert edits(a, b) == edits(b, a) <= max(len(a), len(b))
    assert (edits(a, b) == 0) == (a == b)


@given(st.sampled_from(["n_runners", "steps", "sampling.temperature", "output_dir"]), st.data())
def test_one_swap_or_one_lost_letter_of_a_long_name_still_finds_it(name: str, data: st.DataObject) -> None:
    last = name.rpartition(".")[2]
    at = data.draw(st.integers(0, len(last) - 2))
    wrong = data.draw(
        st.sampled_from([last[:at] + last[at + 1 :], last[:at] + last[at + 1] + last[at] + last[at + 2 :]])
    )
    assert name in nearest(
        wrong,
        {key: key for key in ("learner.lr", "n_runners", "runner", "steps", "sampling.temperature", "output_dir")},
    )
