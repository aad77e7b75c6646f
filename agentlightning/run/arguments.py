"""Arguments: what each entry of a program takes, checked in one place before anything starts. One table, because a
name means the same wherever it is passed.

A value of the wrong kind is one line: where, which argument, what it takes, what it got, and the line that would do.
A name that no entry has gets the nearest one over all that are valid there. Settings in sections are
settings/sources.py's, the values of tasks agent/tasks.py's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from agentlightning.agent.calling import AgentSpec, LitAgent
from agentlightning.agent.loading import short_errors
from agentlightning.agent.resources import LLM, PromptTemplate
from agentlightning.agent.tasks import refuse_other_kinds
from agentlightning.agent.trained_agents import chosen_by_adapter
from agentlightning.algorithms import ALGORITHMS, Algorithm
from agentlightning.errors import ConfigError
from agentlightning.records.json_values import comes_from, kind_of
from agentlightning.records.progress import Progress
from agentlightning.runners.adapting import own_adapt
from agentlightning.runners.compaction import check_parameters
from agentlightning.runners.companions import HOOKS, hooks_of, is_hook
from agentlightning.runners.grading import count_arguments
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.foreign import SpeaksForeign
from agentlightning.settings.sources import Resolved, as_arguments
from agentlightning.spellings.absent import plain, why, why_chosen
from agentlightning.spellings.nearest import did_you_mean, edits, misspelt_absent
from agentlightning.text import one_line

P = ParamSpec("P")
R = TypeVar("R")

_TASK_NAMES = {"task", "sample", "example", "item", "row", "question", "input"}
_OUTPUT_NAMES = {"output", "answer", "response", "completion", "result", "prediction", "reply", "returned"}
_GRADER = ("task", "output", "attempt")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: what it ``takes`` in words, whether a value ``fits``, a line that would do, and for some wrong
    values a ``remedy`` of their own.
    """

    takes: str
    fits: Callable[[Any], bool]
    line: str
    remedy: Callable[[Any], str | None] = lambda value: None


# --------------------------------------------------------------------------- one check for each kind


def _whole(least: int, most: int | None = None) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return type(value) is int and value >= least and (most is None or value <= most)

    return fits


def _is_path(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and bool(value.strip()) and "\0" not in value)


def _is_agent(value: Any) -> bool:
    if isinstance(value, str | AgentSpec | LitAgent | type):
        return True  # what is wrong with one of these is said where it is read
    return (
        callable(value) and not comes_from(value, "torch") and not isinstance(value, LLM | PromptTemplate | Algorithm)
    )


def _agent_remedy(value: Any) -> str | None:
    if (
        inspect.isawaitable(value)
        or inspect.isgenerator(value)
        or inspect.isasyncgen(value)
        or isinstance(value, int | float | None)
    ):
        if inspect.iscoroutine(value):
            value.close()  # nobody will wait for it
        return "the agent was called: pass it itself, fit(agent, tasks) and not fit(agent(...), tasks)"
    if isinstance(value, Path):
        return f"pass {f'{value}:agent'!r}, with the name that it has in the file"
    if comes_from(value, "torch"):
        return "the model goes to Trainer(model=FOLDER); an agent is a function of a task that calls it"
    if hasattr(value, "__len__"):
        return "the agent comes first, then the tasks: fit(agent, tasks)"
    return None


def _model_remedy(value: Any) -> str | None:
    if comes_from(value, "torch") or comes_from(value, "transformers"):
        return "save it, model.save_pretrained(FOLDER) and tokenizer.save_pretrained(FOLDER), and pass model=FOLDER"
    if isinstance(value, LLM):
        return "an LLM is a resource: resources={'judge': LLM(...)}"
    return None


def _is_algorithm(value: Any) -> bool:
    return isinstance(value, Algorithm | SpeaksForeign) and not isinstance(value, type)


def _algorithm_remedy(value: Any) -> str | None:
    if isinstance(value, str) and (sentence := why(value)):
        return sentence
    if isinstance(value, type) and issubclass(value, Algorithm | SpeaksForeign):
        return f"pass an instance, algorithm={value.__name__}()"
    if isinstance(value, Mapping):
        return "pass config={'algorithm': {...}}, or algorithm=GRPO(...)"
    return None


def _are_resources(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and key for key in cast("Mapping[Any, Any]", value))


def _resources_remedy(value: Any) -> str | None:
    if isinstance(value, LLM):
        return "give it a name, resources={'main_llm': LLM(...)}"
    if isinstance(value, PromptTemplate):
        return "give it a name, resources={'prompt_template': PromptTemplate(...)}"
    return None


def _is_progress(value: Any) -> bool:
    return isinstance(value, bool) or (not isinstance(value, type) and not _progress_lacks(value))


def _progress_lacks(value: Any) -> list[str]:
    return [name for name in vars(Progress) if not name.startswith("_") and not callable(getattr(value, name, None))]


def _progress_remedy(value: Any) -> str | None:
    lacks = _progress_lacks(value)
    return f"it lacks {', '.join(lacks)}" if len(lacks) < 6 else None


def _is_grader(value: Any) -> bool:
    return callable(value) and _grader_remedy(value) is None


def _grader_remedy(value: Any) -> str | None:
    if isinstance(value, type):
        return f"it is a class: pass an instance, grader={value.__name__}()"
    if isinstance(value, str):
        return "pass the function; a path is for the command line (--grader FILE.py:fn)"
    if not callable(value):
        return "pass the function itself, without calling it"
    if inspect.isgeneratorfunction(value):
        return "it is a generator: return the number instead of yielding it"
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    names = list(signature.parameters)
    swapped = names[:2] and names[0] in _OUTPUT_NAMES and len(names) > 1 and names[1] in _TASK_NAMES
    if swapped or any(
        name in _GRADER and names.index(name) != place for place, name in enumerate(_GRADER) if name in names
    ):
        right = sorted(names[:3], key=lambda name: 0 if name in _TASK_NAMES else 1 if name in _OUTPUT_NAMES else 2)
        return f"it takes {signature}, and is called by position, the task first: def grader({', '.join(right)})"
    try:
        count_arguments(value)
    except ConfigError as error:
        return str(error)
    return None


def _shortens(value: Any) -> bool:
    return isinstance(value, str) or _compact_remedy(value) is None


def _compact_remedy(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    try:
        check_parameters(value)
    except ConfigError as error:
        return str(error)
    return None


def matched_by(adapter: Any) -> str | None:
    """Which agents an adapter has trained; None for all. Raises ConfigError for what is no adapter."""
    adapts = own_adapt(adapter) is not None or callable(getattr(adapter, "adapt", None))
    return None if adapts and not hasattr(adapter, "agent_match") else chosen_by_adapter(adapter)


def check_adapter(adapter: Any, algorithm: str) -> None:
    """Raises ConfigError for an adapter that an algorithm which trains weights has no use for."""
    if not hasattr(adapter, "agent_match") and own_adapt(adapter) is None:
        raise ConfigError(
            f"adapter={type(adapter).__name__}(): it makes no triplets, and {algorithm} trains weights by them: leave "
            "it out"
        )


def _is_adapter(value: Any) -> bool:
    if isinstance(value, type | str):
        return False
    adapts = own_adapt(value) is not None or callable(getattr(value, "adapt", None))
    return isinstance(value, Mapping) or hasattr(value, "agent_match") or adapts


def _adapter_remedy(value: Any) -> str | None:
    if isinstance(value, type):
        return f"it is a class: pass an instance, adapter={value.__name__}()"
    return None


LAYOUTS = {"sm": "sm", "shm": "sm", "cs": "cs"}
"""How a program may say that its processes are laid out: agents in the one process of the run, or apart from it."""


def layout_of(strategy: Any) -> str | None:
    """``sm`` or ``cs``; None for what says neither."""
    kind = strategy
    if isinstance(strategy, Mapping):
        said = cast("Mapping[Any, Any]", strategy)
        kind = said.get("type") if set(said) == {"type"} else None
    return LAYOUTS.get(kind) if isinstance(kind, str) else None


def _strategy_remedy(value: Any) -> str | None:
    if isinstance(value, Mapping) and (
        others := [str(key) for key in cast("Mapping[Any, Any]", value) if key != "type"]
    ):
        return f"{others[0]} has no part behind it, since a run starts its processes itself: leave it out"
    return None


_TRACES = ("init", "trace_context", "get_last_trace")


def _is_tracer(value: Any) -> bool:
    return not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in _TRACES)


def _tracer_remedy(value: Any) -> str | None:
    if isinstance(value, type):
        return f"it is a class: pass an instance, tracer={value.__name__}()"
    return None


def _are_hooks(value: Any) -> bool:
    return all(is_hook(each) for each in hooks_of(value))


def _hooks_remedy(value: Any) -> str | None:
    wrong = next((each for each in hooks_of(value) if not is_hook(each)), None)
    if isinstance(wrong, type):
        return f"it is a class: pass an instance, hooks=[{wrong.__name__}()]"
    return None


def _resume_remedy(value: Any) -> str | None:
    return f"pass the run's id, resume={value.name!r}" if isinstance(value, Path) else None


_COUNT = "a whole number, at least 1"
_FOLDER = "text or a Path"

ARGUMENTS: dict[str, Argument] = {
    "agent": Argument("a function of a task, a LitAgent, or "
                      "'FILE.py:name'", _is_agent, "fit(agent, tasks)", _agent_remedy),
    "algorithm": Argument("an algorithm", _is_algorithm, "algorithm=GRPO(group_size=8)",
    _algorithm_remedy),
    "model": Argument("a Hugging Face folder or hub id, text or a Path", _is_path, "model='MODEL_DIR'", _model_remedy),
    "config": Argument(
        "a RunConfig, settings by section, or the path of a TOML file",
        lambda v: isinstance(v, RunConfig | Resolved | Mapping) or _is_path(v),
        "config={'learner': {'lr': 1e-5}}",
    ),
    "n_runners": Argument(_COUNT, _whole(1), "n_runners=8"),
    "n_workers": Argument(_COUNT, _whole(1), "n_workers=8"),
    "num_epochs": Argument(_COUNT, _whole(1), "num_epochs=2"),
    "max_tasks": Argument(_COUNT, _whole(1), "max_tasks=100"),
    "max_rollouts": Argument(_COUNT, _whole(1), "max_rollouts=100"),
    "port": Argument("a whole number from 0 (a free one) to 65535", _whole(0, 65535), "port=8000"),
    "output_dir": Argument(_FOLDER, _is_path, "output_dir='runs'"),
    "resources": Argument("resources by name", _are_resources, "resources={'judge': LLM(...)}", _resources_remedy),
    "initial_resources": Argument("resources by name", _are_resources, "initial_resources={'judge': LLM(...)}",
    _resources_remedy),
    "grader": Argument("a function of (task, output, attempt) or (task, "
                       "output)", _is_grader, "grader=grade", _grader_remedy),
    "compact": Argument("a function of (messages, tools, limit, count) that returns messages, or "
                        "'FILE.py:name'", _shortens, "compact=shorten", _compact_remedy),
    "tracer": Argument("a Tracer", _is_tracer, "tracer=AgentOpsTracer()", _tracer_remedy),
    "hooks": Argument(f"objects with any of {', '.join(HOOKS)}", _are_hooks, "hooks=[MyHook()]", _hooks_remedy),
    "adapter": Argument("{'agent_match': ...}, or an object with agent_match or adapt", _is_adapter,
    "adapter={'agent_match': 'NAME'}", _adapter_remedy),
    "triplet_exporter": Argument("an adapter under its older name", _is_adapter,
    "triplet_exporter=TripletExporter()", _adapter_remedy),
    "strategy": Argument("'sm' (one process) or 'cs' (agents apart from the run)",
    lambda v: layout_of(v) is not None, "strategy='sm'", _strategy_remedy),
    "daemon": Argument("True or False", lambda v: isinstance(v, bool), "daemon=True"),
    "progress": Argument("True, False, or an object with the "
                         "methods of Progress", _is_progress, "progress=False", _progress_remedy),
    "resume": Argument("True, False, or the id of a run", lambda v: isinstance(v,
    bool) or (_is_path(v) and isinstance(v, str)), "resume=True", _resume_remedy),
    "n": Argument(_COUNT, _whole(1), "dev(agent, tasks, n=3)"),
}  # fmt: skip

DATA_SETS = ("train_dataset", "val_dataset", "val_data", "tasks")

_NOT_TRAINERS = ("agent", "resume", "n", "val_data", "tasks")
"""What only its methods take."""


_METHODS_LINES = {"resume": "Trainer(...).fit(agent, tasks, resume=True)", "n": "Trainer(...).dev(agent, tasks, n=3)"}

_SAME = {
    "train_dataset": ("tasks", "train", "traintasks", "trainset", "data", "dataset"),
    "tasks": ("train", "traindataset", "traintasks", "val", "valdataset", "valtasks", "test", "data", "dataset"),
    "val_dataset": ("val", "valset", "valtasks", "validation", "validationdataset", "valid", "eval", "evalset", "test"),
}
"""What an argument is called elsewhere, in a program's other entries too."""


def check_argument(where: str, name: str, value: object) -> None:
    """Raises ConfigError, one line, for a value that the argument of this name cannot take. ``where`` is what it was
    passed to.
    """
    if name in DATA_SETS:
        refuse_other_kinds(value, name)
    elif (argument := ARGUMENTS.get(name)) is not None and not argument.fits(value):
        remedy = argument.remedy(value) or argument.line
        raise ConfigError(f"{where}({name}={_shown(value)}): expected {argument.takes}: {remedy}")


def _shown(value: object) -> str:
    """A value in a few words. Only plain ones are written out: a model's text is a page."""
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | dict | Path):
        text = one_line(repr(cast(object, value)))
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    return f"<{kind_of(value)}>"


# --------------------------------------------------------------------------- entries


def checked(entry: Callable[P, R]) -> Callable[P, R]:
    """An entry, whose arguments are checked before it runs: names that it has not, those that are missing, and each
    value against the table.
    """
    signature = inspect.signature(entry)
    where = "Trainer" if entry.__name__ == "__init__" else entry.__name__

    def check(*args: Any, **kwargs: Any) -> None:
        for name, value in _bound(signature, where, args, kwargs).items():
            if value is not signature.parameters[name].default:
                check_argument(where, name, value)

    if inspect.iscoroutinefunction(entry):

        @functools.wraps(entry)
        async def waited(*args: P.args, **kwargs: P.kwargs) -> Any:
            with short_errors():
                check(*args, **kwargs)
                return await cast("Awaitable[Any]", entry(*args, **kwargs))

        return cast("Callable[P, R]", waited)

    @functools.wraps(entry)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with short_errors():
            check(*args, **kwargs)
            return entry(*args, **kwargs)

    return called


def _bound(
    signature: inspect.Signature, where: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments by name, without ``self`` and further keywords. Raises ConfigError for what Python would refuse
    with a TypeError.
    """
    parameters = {
        name: p for name, p in list(signature.parameters.items())[1:] if p.kind is not inspect.Parameter.VAR_KEYWORD
    }
    open_ended = len(parameters) < len(signature.parameters) - 1
    for name in kwargs:
        if name not in parameters and not (open_ended and _is_setting(name)):
            raise ConfigError(_no_such(where, name, kwargs[name], parameters))
    places = [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    given = args[1:]
    if len(given) > len(places):
        taken = f"{len(places)} by position ({', '.join(places)})" if places else "every argument by name"
        raise ConfigError(
            f"{where}: takes {taken}, and got {len(given)}: "
            f"{where}({', '.join(f'{name}=...' for name in list(parameters)[:2])})"
        )
    bound = dict(zip(places, given, strict=False))
    if twice := [name for name in bound if name in kwargs]:
        raise ConfigError(f"{where}: {twice[0]} is given twice, by position and by name: leave one of them out")
    bound |= {name: value for name, value in kwargs.items() if name in parameters}
    missing = [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and name not in bound]
    if missing:
        raise ConfigError(
            f"{where}: {missing[0]} is missing, {ARGUMENTS[missing[0]].takes}: {ARGUMENTS[missing[0]].line}"
        )
    return bound


def _is_setting(name: str) -> bool:
    """Whether a keyword of Trainer is resolved with the settings: a section, a setting, or what has a sentence of its
    own there.
    """
    return name.partition(".")[0] in (*RunConfig.model_fields, "algorithm", "dev") or why(name) is not None


def _no_such(where: str, name: str, value: object, own: Mapping[str, object]) -> str:
    if sentence := why_chosen(name, value):
        return f"{where}({name}={value!r}): {sentence}"
    if meant := next((key for key in own if plain(name) in _SAME.get(key, ())), None):
        return f"{where}({name}=...): no such argument; did you mean {meant}=...?"
    if where == "Trainer" and name in _NOT_TRAINERS:
        return (
            f"Trainer({name}=...): it is an argument of fit, dev or evaluate: "
            f"{_METHODS_LINES.get(name, 'Trainer(...).fit(agent, tasks)')}"
        )
    is_slip = any(edits(plain(name), plain(key)) == 1 for key in own)
    if (sentence := why(name)) and not is_slip:
        return f"{where}({name}=...): {sentence}"
    trainer = as_arguments(ALGORITHMS)
    trainer |= {key: f"{key}=..." for key in (*ARGUMENTS, *DATA_SETS) if key not in _NOT_TRAINERS}
    if where != "Trainer":
        trainer = {key: f"Trainer({how})" for key, how in trainer.items()}
    near = did_you_mean(name, {**trainer, **{key: f"{key}=..." for key in own}})
    if not near and (sentence := misspelt_absent(name)):
        return f"{where}({name}=...): {sentence}"
    hint = near or f"; it takes {', '.join(own)}"
    return f"{where}({name}=...): no such argument{hint}"
