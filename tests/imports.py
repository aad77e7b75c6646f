"""Who imports whom, read from the source without running it: the ground of the import rules and of leaving out tests
that need torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "agentlightning"


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, *, everywhere: bool = False, types: bool = False) -> set[str]:
    """The dotted names that a file imports when it is loaded, ours with what they come from (``a.b`` for ``from a
    import b``).

    ``everywhere`` also counts imports inside functions, ``types`` those under ``if TYPE_CHECKING``, which never run.
    """
    own = path.relative_to(ROOT).with_suffix("").parts
    names: set[str] = set()
    for node in _statements(ast.parse(path.read_text()), everywhere, types):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            base = ".".join(own[: -node.level]) if node.level else ""
            source = ".".join(part for part in (base, node.module or "") if part)
            names |= {source} | {f"{source}.{alias.name}" for alias in node.names}
    return names


def _statements(tree: ast.AST, everywhere: bool, types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            for other in node.orelse:
                yield from _statements(ast.Module([other], []), everywhere, types)
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _statements(node, everywhere, types)


@cache
def graph() -> dict[str, frozenset[str]]:
    """For each module of the package: what it imports when it is loaded, our modules by their own names and others by
    their first part.

    Loading ``a.b.c`` loads ``a.b`` and ``a`` first, so a module's packages count among its imports.
    """
    ours = modules()
    edges: dict[str, frozenset[str]] = {}
    for name, path in ours.items():
        found = {name.rpartition(".")[0]} - {""}
        for target in imports(path):
            if target.split(".")[0] != PACKAGE:
                found.add(target.split(".")[0])
            elif target in ours:
                found |= {target, *_packages(target)}
        edges[name] = frozenset(found - {name})
    return edges


def _packages(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts))}


def loads(name: str) -> dict[str, tuple[str, ...]]:
    """All that loading a module brings in, each with a chain of imports that leads to it."""
    edges = graph()
    chains: dict[str, tuple[str, ...]] = {name: (name,)}
    queue = [name]
    while queue:
        module = queue.pop(0)
        for target in sorted(edges.get(module, ())):
            if target not in chains:
                chains[target] = (*chains[module], target)
                queue.append(target)
    return chains


NEED_TORCH = {"tiny_model", "letters_model", "save_tiny", "save_letters"}


@cache
def needs_torch(path: Path) -> bool:
    """Whether a test file uses torch: itself, in a program it holds, through ours or tests.tiny, its folder's conftest
    or another file of the tests."""
    seen: set[Path] = set()
    queue = [path, path.with_name("conftest.py")]
    while queue:
        file = queue.pop()
        if (
            file in seen
            or not file.is_file()
            or (file.parent == ROOT / "tests" and file.name in {"conftest.py", "tiny.py"})
        ):
            continue
        seen.add(file)
        names = imports(file, everywhere=True)
        in_a_child = re.search(r"^ *(import|from) torch\b", file.read_text(), re.MULTILINE)
        if in_a_child or any(_brings_torch(name) for name in names):
            return True
        queue += [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names if name.startswith("tests.")]
    return False


def _brings_torch(name: str) -> bool:
    first, _, rest = name.partition(".")
    if first == PACKAGE:
        return name in modules() and "torch" in loads(name)
    return first in {"torch", "safetensors"} or (
        name.startswith("tests.tiny.") and rest.rpartition(".")[2] in NEED_TORCH
    )
