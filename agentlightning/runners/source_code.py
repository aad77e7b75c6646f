"""Source code: what an agent's own text says that its calls depend on: fixed addresses and where they come from, and
caches of replies. Read, never run."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from agentlightning.agent.loading import parsed
from agentlightning.records.probe import CodePlace
from agentlightning.runners.assignment import ENDPOINT_VARIABLES
from agentlightning.text import at_home

_URL_ARGUMENTS = ("base_url", "api_base", "openai_api_base", "anthropic_api_url", "endpoint", "host")
_URL = ("http://", "https://")

_CACHING_DECORATORS = ("lru_cache", "cache", "cached", "memoize", "memoized", "alru_cache")
_CACHING_CALLS = (
    "set_llm_cache", "enable_cache", "litellm.Cache", "joblib.Memory", "Memory", "CachedSession",
    "requests_cache.install_cache", "diskcache.Cache",
    "shelve.open",
)  # fmt: skip
_CACHING_NAMES = ("litellm.cache", "langchain.llm_cache")


@dataclass(frozen=True)
class SourceText:
    """A text of a module: its file, or, of one without a file (a notebook, a prompt), a function. ``first`` is how many
    lines come before it."""

    name: str
    folder: Path
    tree: ast.AST
    first: int = 0

    @classmethod
    def all_of(cls, module: ModuleType) -> list[SourceText]:
        """None at all where there is no text to look at."""
        found: list[SourceText] = []
        for name, folder, first, text in _texts(module):
            with suppress(SyntaxError, ValueError):
                found.append(cls(name, folder, parsed(text), first))
        return found

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def constants(self) -> dict[str, str]:
        """Names that the module gives a URL, as text, at its top level."""
        found: dict[str, str] = {}
        for node in getattr(self.tree, "body", []):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Constant)
                and str(node.value.value).startswith(_URL)
            ):
                found.update(
                    {target.id: str(node.value.value) for target in node.targets if isinstance(target, ast.Name)}
                )
        return found

    @cached_property
    def readdressed(self) -> set[str]:
        """Names of clients that are given another base URL before they are used:
        ``client.with_options(base_url=...)``."""
        return {
            ast.unparse(node.func.value)
            for node in self.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("with_options", "copy")
            and any(keyword.arg == "base_url" for keyword in node.keywords)
        }

    def place(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0) + self.first}"

    def place_of(self, name: str) -> str:
        """Where the top level gives this name a value; "" where it does not."""
        for node in getattr(self.tree, "body", []):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name for target in node.targets
            ):
                return self.place(node)
        return ""

    # ------------------------------------------------------------------ fixed addresses

    def fixed(self) -> Iterator[CodePlace]:
        """What leads calls somewhere fixed: a URL given as a client's argument, an endpoint variable that is set, or
        read anew from an ``.env`` file."""
        passed_over = {
            id(node.value)
            for node in self.nodes
            if isinstance(node, ast.Assign) and self._names(node) & self.readdressed
        }
        for node in self.nodes:
            if id(node) in passed_over:
                continue
            if isinstance(node, ast.Call):
                yield from self._arguments(node)
                yield from self._dotenv(node)
            elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
                named = isinstance(target.slice, ast.Constant) and target.slice.value in ENDPOINT_VARIABLES
                if named and "environ" in ast.unparse(target.value):
                    yield CodePlace(self.place(node), ast.unparse(target))

    def _names(self, node: ast.Assign) -> set[str]:
        return {target.id for target in node.targets if isinstance(target, ast.Name)}

    def _arguments(self, call: ast.Call) -> Iterator[CodePlace]:
        for keyword in call.keywords:
            if keyword.arg not in _URL_ARGUMENTS:
                continue
            said = f"{keyword.arg}={ast.unparse(keyword.value)}"
            if isinstance(keyword.value, ast.Constant) and str(keyword.value.value).startswith(_URL):
                yield CodePlace(self.place(keyword.value), said)
            elif isinstance(keyword.value, ast.Name) and (url := self.constants.get(keyword.value.id)):
                yield CodePlace(
                    self.place(keyword.value), f"{said}, which is {url!r} ({self.place_of(keyword.value.id)})"
                )
            elif (variable := _variable(keyword.value)) is not None and variable[0] not in ENDPOINT_VARIABLES:
                name, default = variable
                url = os.environ.get(name, default)
                if url.startswith(_URL):
                    origin = origin_of(self.folder, name=name) or ("" if url != default else "its default")
                    yield CodePlace(self.place(keyword.value), f"{said}, which is {url!r}", origin)

    def _dotenv(self, call: ast.Call) -> Iterator[CodePlace]:
        if not ast.unparse(call.func).endswith("load_dotenv"):
            return
        if not any(keyword.arg == "override" and ast.unparse(keyword.value) == "True" for keyword in call.keywords):
            return
        given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "dotenv_path")]
        named = [at_home(str(one.value)) for one in given if isinstance(one, ast.Constant)]
        files = [file for file in named if file.is_file()] or _dotenv_files(self.folder)
        lines = [
            f"{file.name}:{line} ({name})"
            for file in files
            for line, name, _ in _read_dotenv(file)
            if name in ENDPOINT_VARIABLES
        ]
        if lines or not files:
            yield CodePlace(self.place(call), "load_dotenv(override=True)", ", ".join(lines))

    # ------------------------------------------------------------------ caches

    def caches(self) -> Iterator[CodePlace]:
        """What may answer the same question without a call."""
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for decorator in node.decorator_list:
                    named = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
                    if named.rpartition(".")[2] in _CACHING_DECORATORS:
                        yield CodePlace(self.place(decorator), f"@{named}")
            elif isinstance(node, ast.Call):
                named = ast.unparse(node.func)
                if any(named == one or named.endswith(f".{one}") for one in _CACHING_CALLS):
                    yield CodePlace(self.place(node), f"{named}(...)")
                elif named in ("dspy.LM", "LM") and not any(keyword.arg == "cache" for keyword in node.keywords):
                    yield CodePlace(self.place(node), f"{named}(...) without cache=False")
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _CACHING_NAMES:
                yield CodePlace(self.place(node), f"{ast.unparse(node.targets[0])} = ...")


def fixed_settings(modules: Iterable[ModuleType]) -> list[CodePlace]:
    """Places in the text of modules that lead calls somewhere fixed."""
    return [place for module in modules for text in SourceText.all_of(module) for place in text.fixed()]


def caches(modules: Iterable[ModuleType]) -> list[CodePlace]:
    """Places in the text of modules that keep replies."""
    return [place for module in modules for text in SourceText.all_of(module) for place in text.caches()]


def _texts(module: ModuleType) -> Iterator[tuple[str, Path, int, bytes | str]]:
    """Name, folder, the lines before it, and text."""
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        with suppress(OSError):
            yield Path(file).name, Path(file).absolute().parent, 0, Path(file).read_bytes()
        return
    for value in list(vars(module).values()):
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            with suppress(OSError, TypeError):
                lines, first = inspect.getsourcelines(value)
                yield value.__qualname__, Path.cwd(), first - 1, textwrap.dedent("".join(lines))


# --------------------------------------------------------------------------- where a value comes from


def origin_of(folder: Path, *, name: str | None = None, value: str | None = None) -> str:
    """Where the variable of this name, or one of this value, is set: ``.env:3 (LLM_URL)``, as programs in ``folder``
    read such files in many ways, or ``the variable LLM_URL``. "" where it is not seen."""

    def meant(variable: str, text: str) -> bool:
        return variable == name or (value is not None and text.rstrip("/") == value.rstrip("/"))

    for dotenv in _dotenv_files(folder):
        for line, variable, text in _read_dotenv(dotenv):
            if meant(variable, text):
                return f"{dotenv.name}:{line} ({variable})"
    found = [
        variable
        for variable, text in os.environ.items()
        if meant(variable, text) and (name or variable not in ENDPOINT_VARIABLES)
    ]
    return f"the variable {found[0]}" if found else ""


def _dotenv_files(folder: Path) -> list[Path]:
    """The ``.env`` files that code in a folder would find: those there and in the working directory, and the nearest
    above either."""
    found: dict[Path, None] = {}
    for start in (folder, Path.cwd()):
        found.update(dict.fromkeys(file for file in sorted(start.glob(".env*")) if file.is_file()))
        nearest = next((above / ".env" for above in start.parents if (above / ".env").is_file()), None)
        found.update({nearest: None} if nearest is not None else {})
    return list(found)


def _read_dotenv(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, name and value of each variable."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            yield number, name.strip(), value.split(" #")[0].strip().strip("'\"")


def _variable(node: ast.AST) -> tuple[str, str] | None:
    """The name and the default of an environment variable that an expression reads."""
    if (
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value).endswith("environ")
        and isinstance(node.slice, ast.Constant)
    ):
        return str(node.slice.value), ""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("environ.get", "getenv")) and node.args:
        words = [str(one.value) if isinstance(one, ast.Constant) else "" for one in node.args[:2]]
        return words[0], words[1] if len(words) > 1 else ""
    return None
