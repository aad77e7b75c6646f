"""Modules that programs of this package's name import and that are not here: each answers with a sentence.

The finder that asks this file is in the package itself; a path that gets a module behind it leaves the table, and a
test holds that.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import InspectLoader, Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, NoReturn

import agentlightning
from agentlightning.spellings.absent import why
from agentlightning.spellings.nearest import nearest

_TRACERS = "from agentlightning import Tracer: the endpoint records every call, whichever tracer there is"
_STORE = (
    "the record is a SQLite file that the run opens (agentlightning.store.open_store reads it): leave the store out"
)
_ALONE = (
    "no server is joined and none is started in this version: call Trainer(...).fit(agent, tasks), with the tasks "
    "themselves"
)
_TRAINER = "from agentlightning import Trainer"
_OWN_ALGORITHM = "an algorithm of one's own subclasses agentlightning.algorithms.Algorithm or GRPO"
_STEP = "the run does what verl's trainer did: from agentlightning import VERL, and Trainer(algorithm=VERL(config))"

MODULES = {
    "algorithm.apo": "no prompts are optimised in this version: weights are trained, from agentlightning import GRPO",
    "algorithm.utils": _OWN_ALGORITHM,
    "cli.agentops_server": _TRACERS,
    "cli.prometheus": "a run writes metrics.jsonl and TensorBoard files into its folder",
    "cli.store": _STORE,
    "cli.vllm": "the engine is inside the process that trains (docs/engine.md)",
    "contrib": "nothing is contributed apart: an agent of any framework needs a base URL alone (docs/frameworks.md)",
    "dashboard": "`agl runs` and `agl show RUN` list what is recorded",
    "env_var": "settings are read from AGL_ variables, such as AGL_LEARNER__LR=1e-5 (docs/config.md)",
    "execution": "Trainer runs the agents, in threads or processes (runner.isolation): leave the strategy out",
    "instrumentation": "nothing has to be instrumented: the endpoint records every call",
    "integrations": "frameworks are not integrated: each gets llm.endpoint as its base URL (docs/frameworks.md)",
    "llm_proxy": "the run opens the endpoint itself: an agent with a parameter llm is handed its address",
    "server": _ALONE,
    "store.client_server": _STORE,
    "store.collection": _STORE,
    "store.collection_based": _STORE,
    "store.listener": _STORE,
    "store.mongo": _STORE,
    "store.threading": _STORE,
    "store.utils": _STORE,
    "tracer.dummy": _TRACERS,
    "tracer.http": _TRACERS,
    "tracer.weave": _TRACERS,
    "trainer.init_utils": _TRAINER,
    "trainer.registry": _TRAINER,
    "utils": "there are no helpers for programs beside the names in agentlightning.__all__",
    "verl.async_server": _STEP,
    "verl.daemon": _STEP,
    "verl.dataset": "tasks are what fit() is handed, or the files of data.train_files (docs/verl.md)",
    "verl.entrypoint": "python -m agentlightning.verl FILE.py:agent key=value ... (docs/verl.md)",
    "verl.trainer": _STEP,
}
"""By path below the package, with what to do today."""


DOORS = {
    "adapter": "compat.adapters",
    "adapter.base": "compat.adapters",
    "adapter.messages": "compat.adapters",
    "adapter.triplet": "compat.adapters",
    "algorithm": "compat.algorithms",
    "algorithm.base": "compat.algorithms",
    "algorithm.decorator": "compat.algorithms",
    "algorithm.fast": "compat.algorithms",
    "algorithm.verl": "compat.verl",
    "client": "compat.first_version",
    "config": "compat.command_line",
    "emitter": "compat.emitter",
    "emitter.annotation": "compat.emitter",
    "emitter.exception": "compat.emitter",
    "emitter.message": "compat.emitter",
    "emitter.object": "compat.emitter",
    "emitter.reward": "compat.emitter",
    "litagent": "agent.calling",
    "litagent.decorator": "agent.calling",
    "litagent.litagent": "agent.calling",
    "logging": "compat.logging",
    "reward": "compat.emitter",
    "semconv": "compat.semconv",
    "runner": "compat.runner",
    "runner.agent": "compat.runner",
    "runner.base": "compat.runner",
    "store.memory": "compat.store",
    "tracer": "compat.tracers",
    "tracer.agentops": "compat.tracers",
    "tracer.base": "compat.tracers",
    "tracer.otel": "compat.tracers",
    "tracer.triplet": "compat.adapters",
    "trainer": "compat.trainer",
    "trainer.legacy": "compat.trainer",
    "trainer.trainer": "compat.trainer",
    "types": "compat.types",
    "types.core": "compat.types",
    "types.legacy": "compat.types",
    "types.resources": "compat.types",
    "types.tracer": "compat.types",
    "verl": "compat.verl",
    "verl.__main__": "compat.verl_command",
}
"""Paths by which programs ask for what is elsewhere here: each is a module that has the names of the other."""


NAMES = {
    "store.InMemoryLightningStore": "compat.store",
    "store.LightningStore": "compat.store",
}
"""The same for single names, of modules that are here under the same path and have them not."""


ELSEWHERE = {
    "Progress": "records.progress",
    "RolloutRawResult": "types",
    "TaskInput": "types",
    "last_trace": "tracing",
}
"""Names that are looked for in the package itself, with the module here that has them."""


def why_no_module(path: str) -> str | None:
    """The sentence for what was imported and not found, a module or a name of one (``agentlightning.types.Triplet``).

    None where nothing is known of it.
    """
    below = path.removeprefix(f"{agentlightning.__name__}.")
    holder, _, name = path.rpartition(".")
    sentence = MODULES.get(below)
    if sentence is None and name in agentlightning.__all__:
        sentence = f"from {agentlightning.__name__} import {name}"
    if sentence is None:
        sentence = why(name)
    if sentence is None and not name.startswith("_"):
        if holder == agentlightning.__name__:
            sentence = _elsewhere_or_near(name)
        elif (home := DOORS.get(holder.removeprefix(f"{agentlightning.__name__}."))) is not None:
            sentence = _what_is_behind(holder, home, name)
    return None if sentence is None else f"{holder} ({agentlightning.__version__}) has no {name}: {sentence}"


def _what_is_behind(door: str, home: str, name: str) -> str:
    names: list[str] = sorted(getattr(import_module(f"{agentlightning.__name__}.{home}"), "__all__", ()))
    near = nearest(name, {each: each for each in names})
    if near:
        return f"did you mean {' or '.join(near)}? from {door} import {near[0]}"
    return f"it has {', '.join(names)}" if names else f"see agentlightning.{home}"


def _elsewhere_or_near(name: str) -> str | None:
    package = agentlightning.__name__
    if name in ELSEWHERE:
        return f"from {package}.{ELSEWHERE[name]} import {name}"
    near = nearest(name, {each: each for each in agentlightning.__all__ if not each.startswith("_")})
    return f"did you mean {' or '.join(near)}? from {package} import {near[0]}" if near else None


def spec_of(path: str) -> ModuleSpec | None:
    """A spec whose module cannot be loaded, for a path with a sentence.

    So who only looks for the module (``importlib.util.find_spec``) gets no error. For a door it is a spec whose module
    has the names of what is behind it.
    """
    below = path.removeprefix(f"{agentlightning.__name__}.")
    if below in NAMES:
        return ModuleSpec(path, _NameOf(f"{agentlightning.__name__}.{NAMES[below]}"))
    home = DOORS.get(below)
    if home is not None:
        door = _Door(f"{agentlightning.__name__}.{home}")
        return ModuleSpec(path, door, is_package=not path.endswith(".__main__"))
    sentence = why_no_module(path)
    return None if sentence is None else ModuleSpec(path, _Refusing(sentence))


class _Door(Loader):
    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return _Called(spec.name) if spec.name.rpartition(".")[2] in agentlightning.__all__ else None

    def exec_module(self, module: ModuleType) -> None:
        def get(name: str) -> object:
            if name.startswith("__") and name != "__all__":  # whoever looks through all modules loads nothing by it
                raise AttributeError(f"{module.__name__} has no {name}", name=name)
            try:
                return getattr(import_module(self.home), name)
            except AttributeError:
                sentence = why_no_module(f"{module.__name__}.{name}")
                raise AttributeError(sentence or f"{self.home} has no {name}", name=name) from None

        module.__dict__["__getattr__"] = get

    def get_code(self, fullname: str) -> CodeType | None:
        """What ``python -m`` asks for: the code behind the door."""
        home = find_spec(self.home)
        loader = home.loader if home is not None else None
        return loader.get_code(self.home) if isinstance(loader, InspectLoader) else None


class _NameOf(Loader):
    """Python asks for a module of this path where a package lacks a name: it gets what is meant."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Python's own, for as long as it takes."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = getattr(import_module(self.home), name)


class _Called(ModuleType):
    """A path that is a public name too: importing the module puts it in that name's place, so that it is called as what
    it has of its own name (``agentlightning.reward``)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Refusing(Loader):
    def __init__(self, sentence: str) -> None:
        self.sentence = sentence

    def refuse(self, name: str) -> NoReturn:
        # No ModuleNotFoundError: `from agentlightning.types import Triplet` would put its own words in place of one.
        raise ImportError(self.sentence, name=name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        self.refuse(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self.refuse(module.__name__)

    def get_code(self, fullname: str) -> CodeType | None:
        """What ``python -m`` asks for."""
        self.refuse(fullname)
