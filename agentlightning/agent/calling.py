"""Agent: how user code is called. It turns a function, a ``LitAgent`` or ``"FILE.py:name"`` into one thing a runner can
call.

A wrong signature is found here, before anything starts, and every parameter is handed over by its name. This module
runs where agents run: it never imports torch, and it decides nothing about rewards, deadlines or isolation.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, update_wrapper
from pathlib import Path
from types import CellType
from typing import Any, Generic, TypeVar, cast, overload

from agentlightning.agent.loading import AgentSource, find_source, import_source, parse_path
from agentlightning.agent.resources import LLM, NamedResources
from agentlightning.agent.rollouts import Rollout
from agentlightning.agent.trained_agents import check_pattern
from agentlightning.errors import ConfigError
from agentlightning.nouns import Json, Mode

KNOWN = ("llm", "resources", "prompt_template", "rollout", "tokenizer")
"""What an agent can be handed after its task, by parameter name."""

_OLDER = "rollout_id"
_METHODS = ("rollout", "training_rollout", "validation_rollout")
_HOOKS = {
    "on_rollout_start": ("on_rollout_start", "on_rollout_started"),
    "on_rollout_end": ("on_rollout_end", "on_rollout_ended"),
}
"""What an agent's own hooks are called, by when they are: before its method, and after it, however that ended."""
_AROUND = ("trainer", "runner", "tracer")
T_contra = TypeVar("T_contra", contravariant=True)
_F = TypeVar("_F", bound=Callable[..., Any])


# --------------------------------------------------------------------------- what an agent is handed


@dataclass(frozen=True, slots=True)
class Handed:
    """Everything one attempt can hand to its agent."""

    task: Json
    llm: LLM
    resources: NamedResources
    rollout: Rollout
    load_tokenizer: Callable[[], Any] | None = None
    """Gives the tokenizer of the run's model; None where there is none."""

    def has(self, name: str) -> bool:
        """Whether there is a value for a parameter: a run may have no prompt template, and no model."""
        if name == "tokenizer":
            return self.load_tokenizer is not None
        return name != "prompt_template" or self.resources.prompt_template() is not None

    def get(self, name: str) -> Any:
        """The value for a parameter. Raises ConfigError for a prompt template that the resources do not hold, and for
        the tokenizer of a run without a model."""
        if name == "tokenizer":
            if self.load_tokenizer is None:
                raise ConfigError(NO_TOKENIZER)
            return self.load_tokenizer()
        if name == "prompt_template":
            template = self.resources.prompt_template()
            if template is None:
                raise ConfigError(NO_TEMPLATE)
            return template
        if name == _OLDER:
            return self.rollout.rollout_id
        return getattr(self, name)


NO_TOKENIZER = (
    "the agent takes tokenizer, and this run has no model whose it would be: name one, "
    "@rollout(tokenizer=LLM(name='ORG/MODEL', tokenizer_only=True))"
)
NO_TEMPLATE = (
    "the agent takes prompt_template and the run's resources hold none: pass resources={'prompt_template': "
    "PromptTemplate(...)}"
)


# --------------------------------------------------------------------------- what users write


class LitAgent(Generic[T_contra]):
    """Base of agents that are classes, ``LitAgent`` or ``LitAgent[TASK]``. A subclass defines any of ``rollout``,
    ``training_rollout`` and ``validation_rollout``, each plain or as ``..._async``; it need not call
    ``super().__init__()``.

    They take the task first and then, by name and in any order, what they need of ``llm``, ``resources``,
    ``prompt_template`` and ``rollout`` (older ones: ``rollout_id``). Without a ``training_rollout`` or
    ``validation_rollout``, ``rollout`` serves for it.

    ``on_rollout_start`` and ``on_rollout_end``, plain or async, are called around each of them with what they take of
    ``task``, ``rollout``, ``runner``, ``tracer`` and ``agent`` (``task`` is the rollout too, whose ``input`` is the
    task); the second one also where the agent fails, with the rollout's ``status`` and ``end_time``.
    """

    trained_agents: str | None = None
    """The agents of its program that are trained, as the run's setting of this name has it: where that is not given,
    this one holds. None: all."""

    def __init__(self, *, trained_agents: str | None = None) -> None:
        if trained_agents is not None:
            self.trained_agents = check_pattern(trained_agents, "LitAgent")

    def __getattr__(self, name: str) -> Any:
        if name in _AROUND:
            raise AttributeError(f"{type(self).__name__}.{name} is not there: {_NOT_THERE[name]}", name=name, obj=self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def set_trainer(self, trainer: Any) -> None:
        """Has ``trainer`` be this one, in this process."""
        self.trainer = trainer

    def set_runner(self, runner: Any) -> None:
        """Has ``runner`` be this one, in this process."""
        self.runner = runner

    def get_trainer(self) -> Any:
        return self.trainer

    def get_runner(self) -> Any:
        return self.runner

    def get_tracer(self) -> Any:
        return self.tracer


_NOT_THERE = {
    "trainer": "agents run apart from their Trainer, which may be another process; what an agent needs of it is passed "
    "as a resource",
    "runner": "it is there while a run calls the agent",
    "tracer": "it is there while a run calls the agent; the endpoint records every call without one",
}


class FunctionAgent(LitAgent[Any]):
    """A function under ``@rollout``. It can still be called as the function it is."""

    def __init__(
        self,
        function: Callable[..., Any],
        requires: str | None = None,
        model: LLM | None = None,
        tokenizer: LLM | None = None,
    ) -> None:
        super().__init__()
        update_wrapper(self, function)
        self.function = function
        self.model = model
        self.tokenizer = tokenizer
        _check_callable(function, _name_of(function))
        parameters = _plan(function, _name_of(function), KNOWN).names
        if requires is not None and requires not in parameters:
            raise ConfigError(
                f"agent {_name_of(function)!r}: @{requires.removesuffix('_template')}_rollout needs a parameter named "
                f"{requires!r}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def rollout(function: Callable[..., Any], /) -> FunctionAgent: ...
@overload
def rollout(
    *, model: LLM | None = None, tokenizer: LLM | None = None
) -> Callable[[Callable[..., Any]], FunctionAgent]: ...
def rollout(
    function: Callable[..., Any] | None = None, /, *, model: LLM | None = None, tokenizer: LLM | None = None
) -> FunctionAgent | Callable[[Callable[..., Any]], FunctionAgent]:
    """Marks a plain or async function as an agent: ``@rollout``, ``@rollout()`` or ``@rollout(model=LLM(...))``.

    ``model`` carries sampling parameters for the ``llm`` that is handed over; the endpoint is always the run's.
    ``tokenizer`` says that the agent takes the tokenizer of the run's model; what it names is taken where the run has
    none. Raises ConfigError for a signature that cannot be called.
    """
    if model is not None and model.tokenizer_only:
        raise ConfigError("@rollout(model=LLM(tokenizer_only=True)): a tokenizer is passed as tokenizer=LLM(...)")
    if function is not None:
        return FunctionAgent(function)
    return partial(FunctionAgent, model=model, tokenizer=tokenizer)


def llm_rollout(function: Callable[..., Any]) -> FunctionAgent:
    """``@rollout`` for a function that has to take ``llm``."""
    return FunctionAgent(function, requires="llm")


def prompt_rollout(function: Callable[..., Any]) -> FunctionAgent:
    """``@rollout`` for a function that has to take ``prompt_template``."""
    return FunctionAgent(function, requires="prompt_template")


# --------------------------------------------------------------------------- how it is called


@dataclass(frozen=True, slots=True)
class Method:
    """A callable with the names it is handed: ``positional`` after the task, then ``keywords``. ``optional`` ones have
    a default. ``inner`` is the function that it hands them on to, where it is a wrapper that does not say so itself."""

    function: Callable[..., Any]
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    optional: frozenset[str]
    inner: Callable[..., Any] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.positional, *self.keywords))

    def call(self, handed: Handed) -> Any:
        """Calls the user's code. What it returns may be an awaitable."""
        keywords = {name: handed.get(name) for name in self.keywords if name not in self.optional or handed.has(name)}
        return self.function(handed.task, *(handed.get(name) for name in self.positional), **keywords)


@dataclass(frozen=True, slots=True)
class Agent:
    """User code, loaded and checked. ``methods`` has an entry for every mode it can run in; ``model`` is what
    ``@rollout(model=...)`` declared, ``tokenizer`` what ``@rollout(tokenizer=...)`` did, ``trained_agents`` what a
    ``LitAgent`` says of that; ``owner`` is the object that has hooks of its own."""

    name: str
    methods: Mapping[Mode, Method]
    model: LLM | None = None
    trained_agents: str | None = None
    owner: LitAgent[Any] | None = None
    tokenizer: LLM | None = None

    @property
    def parameters(self) -> frozenset[str]:
        """The names it takes after its task, in any mode."""
        return frozenset[str]().union(*(method.names for method in self.methods.values()))

    @property
    def needs_template(self) -> bool:
        """Whether it cannot be called without a prompt template."""
        return any("prompt_template" in method.names - method.optional for method in self.methods.values())

    def call(self, mode: Mode, handed: Handed) -> Any:
        """Calls the method for ``mode``; what it returns may be an awaitable. Raises ConfigError when there is none."""
        method = self.methods.get(mode)
        if method is None:
            raise ConfigError(
                f"agent {self.name!r} has no {'validation' if mode is Mode.VAL else 'training'}_rollout and no rollout"
            )
        return method.call(handed) if self.owner is None else _hooked(self.owner, method, handed)


class AgentSpec:
    """An agent as it was named: by an object, or by a path that is imported only where the agent runs.

    ``source`` is where it can be imported again, which ``process`` isolation needs; None for closures and notebook
    cells. ``from_path`` tells whether a path was given.
    """

    def __init__(self, name: str, source: AgentSource | None, *, from_path: bool, agent: Agent | None = None) -> None:
        self.name = name
        self.source = source
        self.from_path = from_path
        self._agent = agent

    @property
    def file(self) -> Path | None:
        """The file that holds it, where that is known without importing it."""
        return None if self.source is None or self.source.file is None else Path(self.source.file)

    def load(self) -> Agent:
        """The agent, imported into this process if it is not yet. Raises ConfigError."""
        if self._agent is None:
            assert self.source is not None
            self._agent = make_agent(import_source(self.source), self.name)
        return self._agent


def as_agent(agent: object) -> AgentSpec:
    """An AgentSpec from a function (plain or async, with or without ``@rollout``), a LitAgent instance,
    ``"FILE.py:name"`` or ``"pkg.mod:name"``.

    An object is checked at once. Of a path, the file, its syntax and its name are checked; it is imported where it will
    run (``check_agent`` in ``agentlightning.runners`` does so in advance), so that each attempt's environment is there
    when its module is imported. Raises ConfigError.
    """
    if isinstance(agent, AgentSpec):
        return agent
    if isinstance(agent, str):
        source = parse_path(agent)
        return AgentSpec(source.attribute, source, from_path=True)
    name = _name_of(agent)
    return AgentSpec(name, find_source(agent), from_path=False, agent=make_agent(agent, name))


def make_agent(obj: object, name: str) -> Agent:
    """Checks how ``obj`` can be called and returns it as an Agent. Raises ConfigError saying what is wrong with it."""
    if isinstance(obj, FunctionAgent):
        method = _plan(obj.function, name, KNOWN)
        return Agent(name, dict.fromkeys(Mode, method), obj.model, _trained_agents(obj, name), tokenizer=obj.tokenizer)
    if isinstance(obj, LitAgent):
        return _make_class_agent(cast("LitAgent[Any]", obj), name)
    if inspect.isclass(obj):
        what = "pass an instance of it" if issubclass(obj, LitAgent) else "pass a function or an instance of a LitAgent"
        raise ConfigError(f"agent {name!r} is a class: {what}, such as agent = {obj.__name__}()")
    _check_callable(obj, name)
    assert callable(obj)
    return Agent(name, dict.fromkeys(Mode, _plan(obj, name, KNOWN)))


def _hooks_of(agent: LitAgent[Any], when: str) -> list[Callable[..., Any]]:
    return [hook for name in _HOOKS[when] if (hook := getattr(agent, name, None)) is not None]


def _hooked(owner: LitAgent[Any], method: Method, handed: Handed) -> Any:
    """Calls the method with the agent's own hooks around it. What it returns is an awaitable where the method's is one.

    A plain method is called here, in its own thread, whatever its hooks are: the loop that async agents share must not
    wait for it.
    """
    view = handed.rollout
    if inspect.iscoroutinefunction(method.function):
        return _hooked_async(owner, partial(method.call, handed), view)
    _run_hooks(owner, "on_rollout_start", view)
    try:
        value = method.call(handed)
    except BaseException as error:
        _note_end(view, error)
        _run_hooks(owner, "on_rollout_end", view)
        raise
    if inspect.isawaitable(value):
        return _hooked_async(owner, lambda: value, view, begun=True)
    _note_end(view, None)
    _run_hooks(owner, "on_rollout_end", view)
    return value


async def _hooked_async(owner: LitAgent[Any], call: Callable[[], Any], view: Rollout, *, begun: bool = False) -> Any:
    async def hooks(when: str) -> None:
        for hook in _hooks_of(owner, when):
            value = _hook(hook, owner, view)
            if inspect.isawaitable(value):
                await value

    if not begun:
        await hooks("on_rollout_start")
    try:
        value = await call()
    except BaseException as error:
        _note_end(view, error)
        await hooks("on_rollout_end")
        raise
    _note_end(view, None)
    await hooks("on_rollout_end")
    return value


def _run_hooks(owner: LitAgent[Any], when: str, view: Rollout) -> None:
    async def awaited(value: Any) -> None:
        await value

    for hook in _hooks_of(owner, when):
        value = _hook(hook, owner, view)
        if inspect.isawaitable(value):
            asyncio.run(awaited(value))


def _note_end(view: Rollout, error: BaseException | None) -> None:
    view.status, view.end_time = "succeeded" if error is None else "failed", time.time()


def _hook(hook: Callable[..., Any], owner: LitAgent[Any], view: Rollout) -> Any:
    """Calls a hook with what it declares. One that nothing is known for gets its default, or Python says what lacks."""
    parameters = inspect.signature(hook).parameters
    known = {"task": view, "rollout": view, "agent": owner}
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        parameters = {**dict.fromkeys((*known, "runner", "tracer")), **parameters}
    given = {name: known[name] for name in parameters if name in known}
    given |= {name: getattr(owner, name, None) for name in ("runner", "tracer") if name in parameters}
    return hook(**given)


def _make_class_agent(agent: LitAgent[Any], name: str) -> Agent:
    found: dict[str, Method] = {}
    for method in _METHODS:
        function = getattr(agent, f"{method}_async", None) or getattr(agent, method, None)
        if function is not None:
            label = f"{name}.{getattr(function, '__name__', method)}"
            _check_callable(function, label)
            found[method] = _plan(function, label, (*KNOWN, _OLDER))
    if not found:
        wanted = ", ".join(_METHODS)
        raise ConfigError(
            f"agent {name!r} ({type(agent).__name__}) defines none of {wanted} (each also with _async): define one"
        )
    training = found.get("training_rollout") or found.get("rollout")
    validation = found.get("validation_rollout") or found.get("rollout")
    methods = {Mode.TRAIN: training, Mode.DEV: training or validation, Mode.VAL: validation}
    return Agent(
        name,
        {mode: method for mode, method in methods.items() if method is not None},
        trained_agents=_trained_agents(agent, name),
        owner=agent if any(_hooks_of(agent, when) for when in _HOOKS) else None,
    )


def _trained_agents(agent: LitAgent[Any], name: str) -> str | None:
    return None if agent.trained_agents is None else check_pattern(agent.trained_agents, f"agent {name!r}")


def _check_callable(obj: object, name: str) -> None:
    if not callable(obj):
        raise ConfigError(
            f"agent {name!r} is {type(obj).__name__} and cannot be called: pass a function, a LitAgent or "
            "'FILE.py:name'"
        )
    target = inspect.unwrap(obj)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise ConfigError(f"agent {name!r} is a generator: return the reward (or None) instead of yielding")


def _plan(function: Callable[..., Any], name: str, known: tuple[str, ...]) -> Method:
    """Which of ``known`` a callable is handed. The first parameter is the task, whatever it is called."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"agent {name!r} has no signature that can be read ({error}): wrap it in a function of (task, llm)"
        ) from error
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    offered = ", ".join(known)
    if not parameters or parameters[0].kind not in (*positional, inspect.Parameter.VAR_POSITIONAL):
        raise ConfigError(f"agent {name!r} takes no task: its first parameter is the task, then any of {offered}")
    if all(
        parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD) for parameter in parameters
    ):
        return _plan_wrapper(function, name, known, by_name=len(parameters) == 2)
    first: list[str] = []
    keywords: list[str] = []
    optional: set[str] = set()
    for parameter in parameters[1:]:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        has_default = parameter.default is not inspect.Parameter.empty
        if parameter.name not in known:
            if has_default:
                continue
            raise ConfigError(
                f"agent {name!r} has a parameter {parameter.name!r} that nothing is known for: "
                f"known are {offered}, after the task; give it a default or remove it"
            )
        (first if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else keywords).append(parameter.name)
        if has_default:
            optional.add(parameter.name)
    return Method(function, tuple(first), tuple(keywords), frozenset(optional))


def _plan_wrapper(function: Callable[..., Any], name: str, known: tuple[str, ...], *, by_name: bool) -> Method:
    """The plan of the one function that a wrapper of ``*args, **kwargs`` holds: ``functools.wraps`` would say which."""
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
    if not inspect.isroutine(function):
        held += list(getattr(function, "__dict__", {}).values())
    inner = [value for value in held if callable(value) and not inspect.isclass(value)]
    if len(inner) == 1:
        wrapped = inner[0].function if isinstance(inner[0], FunctionAgent) else inner[0]
        plan = _plan(wrapped, name, known)
        if by_name or not plan.keywords:
            return Method(function, plan.positional, plan.keywords, plan.optional, plan.inner or wrapped)
    raise ConfigError(
        f"agent {name!r} takes {inspect.signature(function)}, which does not say what it is to be handed: "
        "put @functools.wraps(function) on the wrapper, or name its parameters, (task, llm)"
    )


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # named in the wrapper, and never set
        return False


def _name_of(obj: object) -> str:
    name = getattr(obj, "__name__", None)
    return name if isinstance(name, str) else type(obj).__name__


__all__ = [
    "Agent",
    "AgentSpec",
    "FunctionAgent",
    "Handed",
    "LitAgent",
    "Method",
    "as_agent",
    "llm_rollout",
    "make_agent",
    "prompt_rollout",
    "rollout",
]
