"""What the pages say can be done: their programs compile, and every name, command, option, setting, path and link in
them exists."""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

import agentlightning
from agentlightning.algorithms import ALGORITHMS, GRPO
from agentlightning.cli.app import app
from agentlightning.run.trainer import Trainer
from agentlightning.settings.fields import RunConfig
from agentlightning.settings.sources import resolve
from tests.imports import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
BENCHMARKS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_"))


@dataclass(frozen=True)
class Snippet:
    """A fenced block of a page, or a piece of code within a line."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Snippet]:
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
        yield Snippet(page, page.read_text()[: found.start()].count("\n") + 2, found[2], found[3])


def inline(page: Path) -> Iterator[Snippet]:
    text = re.sub(
        r"^ *```.*?^ *```",
        lambda fenced: "\n" * fenced[0].count("\n"),
        page.read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    for number, line in enumerate(text.splitlines(), 1):
        for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", line):
            yield Snippet(page, number, "inline", found[1].replace("\\|", "|"))


def snippets(kind: str) -> list[Any]:
    return [pytest.param(each, id=str(each)) for page in PAGES for each in blocks(page) if each.kind == kind]


# --------------------------------------------------------------------------- python


def imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        pytest.skip("needs torch")


def fields(target: Any) -> set[str] | None:
    """The keywords that a callable takes; None where it takes any."""
    if target is Trainer:
        own = {
            name
            for name, p in inspect.signature(Trainer).parameters.items()
            if p.kind is not inspect.Parameter.VAR_KEYWORD
        }
        return own | set(RunConfig.model_fields)
    parameters = inspect.signature(target).parameters.values()
    return None if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}


@pytest.mark.parametrize("snippet", snippets("python"))
def test_the_programs_of_the_pages_compile_and_call_what_there_is(snippet: Snippet) -> None:
    compile(snippet.text, str(snippet), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    tree = ast.parse(snippet.text)
    known: dict[str, Any] = {"Trainer": Trainer, "LLM": agentlightning.LLM, "GRPO": GRPO}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "agentlightning":
            for alias in node.names:
                module = imported(node.module or "")
                if not hasattr(module, alias.name):
                    imported(f"{node.module}.{alias.name}")
                known[alias.name] = getattr(module, alias.name)
    made: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            called = node.value.func
            if isinstance(called, ast.Name) and inspect.isclass(known.get(called.id)):
                made[node.targets[0].id] = known[called.id]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        target: Any = None
        if isinstance(node.func, ast.Name):
            target = known.get(node.func.id)
        elif (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in made
        ):
            assert hasattr(made[node.func.value.id], node.func.attr), f"{snippet}: {ast.unparse(node.func)}"
            target = getattr(made[node.func.value.id], node.func.attr)
        if target is not None and (taken := fields(target)) is not None:
            assert {word.arg for word in node.keywords if word.arg} <= taken, f"{snippet}: {ast.unparse(node)}"
        if target is Trainer:
            written = {word.arg: word.value for word in node.keywords if word.arg}
            plain = {
                name: value
                for name, value in written.items()
                if isinstance(value, ast.Constant | ast.Dict) and name != "resources"
            }
            Trainer(**{name: ast.literal_eval(value) for name, value in plain.items()})


# --------------------------------------------------------------------------- commands


COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def command_lines() -> list[Any]:
    found: list[Snippet] = []
    for page in PAGES:
        for block in blocks(page):
            if block.kind in ("", "sh", "bash", "console"):
                found += [
                    Snippet(page, block.line + at, "line", line) for at, line in enumerate(block.text.splitlines())
                ]
        found += inline(page)
    begins = re.compile(
        r"(?:[A-Z_]+=\S+ )*(agl|make|python (?=benchmarks/|scripts/|examples/)|python -m agentlightning)\b"
    )
    return [pytest.param(each, id=f"{each} {each.text[:40]}") for each in found if begins.match(each.text)]


@pytest.mark.parametrize("snippet", command_lines())
def test_the_commands_of_the_pages_exist_with_their_options(snippet: Snippet) -> None:
    words = re.sub(r"\s#.*", "", snippet.text).split()
    while re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    options = {word.strip("[]").partition("=")[0] for word in words if re.match(r"\[?--?[a-z]", word)}
    if words[0] == "make":
        named = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        assert named[0] in TARGETS, snippet.text
    elif words[:2] == ["python", "-m"]:
        module = find_spec(words[2])
        assert module is not None and module.origin is not None, snippet.text
    elif words[0] == "python":
        program = ROOT / words[1]
        assert program.is_file(), snippet.text
        known = set(re.findall(r'"(--?[a-z][a-z-]*)"', program.read_text()))
        assert options <= known | {"--help"}, snippet.text
    elif len(words) > 1 and words[1] != "COMMAND":
        known = {
            option for parameter in COMMANDS[words[1]].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert options <= known | {"--help", "--debug"}, snippet.text


def test_the_options_that_the_pages_name_alone_are_those_of_a_command() -> None:
    known = {option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts} | {
        "--help",
        "--debug",
    }
    for program in (ROOT / "examples").glob("*/train.py"):
        known |= set(re.findall(r'"(--[a-z][a-z-]*)"', program.read_text()))
    named = [
        each
        for page in PAGES
        for each in inline(page)
        if re.match(r"--[a-z]", each.text) and page.parent.name != "benchmarks"
    ]
    assert [str(each) for each in named if re.split(r"[ =]", each.text)[0] not in known] == [] and len(named) > 5


def test_every_command_is_in_its_table() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name in COMMANDS if f"| `agl {name}" not in page] == []


# --------------------------------------------------------------------------- settings, paths, links


@pytest.mark.parametrize("snippet", snippets("toml"))
def test_the_settings_files_of_the_pages_are_taken(snippet: Snippet, tmp_path: Path) -> None:
    tomllib.loads(snippet.text)
    file = tmp_path / "run.toml"
    file.write_text(snippet.text)
    resolve(ALGORITHMS, file)


SECTIONS: dict[str, Any] = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if hasattr(field.annotation, "model_fields")
}


def test_the_settings_that_the_pages_name_exist() -> None:
    wrong: list[str] = []
    seen = 0
    for page in PAGES:
        for each in inline(page):
            found = re.match(r"([a-z]+)\.([a-z_]+)(?=$| |\.)", each.text)
            if (
                found is None
                or found[1] not in SECTIONS
                or (page.parent / each.text).exists()
                or each.text == "model.generate"
            ):
                continue
            seen += 1
            if found[2] not in SECTIONS[found[1]].model_fields and not each.text.endswith((".json", ".py", ".md")):
                wrong.append(f"{each}: {each.text}")
    assert wrong == [] and seen > 10


def test_the_links_of_the_pages_lead_somewhere() -> None:
    def anchors(page: Path) -> set[str]:
        heads = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    wrong: list[str] = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert wrong == []


def test_the_files_that_the_pages_name_exist() -> None:
    wrong = [
        f"{each}: {each.text}"
        for page in PAGES
        for each in inline(page)
        if re.fullmatch(r"(agentlightning|benchmarks|docs|examples|scripts|tests)/[\w./-]*", each.text)
        and not (ROOT / each.text).exists()
    ]
    assert wrong == []


# --------------------------------------------------------------------------- what the code says of itself


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_a_file_that_a_docstring_names_exists() -> None:
    """Beside the module that names it or in a folder above; ``FILE.py`` and the like are a user's."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "agentlightning").rglob("*.py"))
        for line, said in prose(path)
        for name in re.findall(r"[\w/]*\w\.py\b", said)
        if name not in ("FILE.py", "file.py", "my_agent.py")
        and not any((folder / name).is_file() for folder in path.parents if folder.is_relative_to(ROOT))
    ]
    assert wrong == []


def test_a_module_that_a_page_names_exists() -> None:
    """By the end of its path; but for a user's own (``my_agent.py``) and those of other projects."""
    ours = [f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    theirs = {"my_agent.py", "train.py", "FILE.py"}
    wrong = [
        f"{each}: {each.text}"
        for page in PAGES
        if page.name != "absent.md"
        for each in inline(page)
        if re.fullmatch(r"[\w/]+\.py", each.text)
        and each.text not in theirs
        and not any(path.endswith(f"/{each.text}") for path in ours)
    ]
    assert wrong == []


# --------------------------------------------------------------------------- benchmarks


@pytest.mark.skipif(find_spec("torch") is None, reason="some of them import torch")
def test_every_benchmark_is_in_the_table_and_says_what_it_measures_and_takes() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    assert [path.name for path in BENCHMARKS if f"| `{path.name}` |" not in page] == []
    asked = [
        (path, subprocess.Popen([sys.executable, path, "--help"], stdout=subprocess.PIPE, text=True))
        for path in BENCHMARKS
    ]
    for path, process in asked:
        said = process.communicate(timeout=600)[0]
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert process.returncode == 0 and doc.splitlines()[0] in said, path.name
        usage = re.search(rf"^ *python benchmarks/{path.name}(.*(?:\n {{4,}}\S.*)*)$", doc, re.MULTILINE)
        assert usage is not None, f"{path.name}: its docstring shows no way to call it"
        options = said.partition("\noptions:\n")[2]
        taken = set(re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", options, re.MULTILINE)) - {"--help"}
        assert set(re.findall(r"--[a-z0-9-]+", usage[1])) == taken, path.name
        unsaid = [
            line
            for line in re.findall(r"^  (--.*(?:\n {10,}.*)*)", options, re.MULTILINE)
            if not re.search(r"  +\S+", line)
        ]
        assert unsaid == [], path.name


def test_the_readme_says_how_to_install_without_cuda_before_it_says_install() -> None:
    """Plain pip on Linux brings gigabytes of CUDA libraries, whether there is a GPU or not."""
    before, command, _ = (Path(__file__).parents[1] / "README.md").read_text().partition('pip install ".[demo]"')
    assert command and "https://pytorch.org/get-started/locally/" in before
