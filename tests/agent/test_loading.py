"""Where an object can be imported from again: only where a file holds the code that was given. And how an error
leaves."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentlightning.agent.loading import describe, find_source, parsed, short_errors
from agentlightning.errors import ConfigError
from agentlightning.logs import configure_logger

TEXT = """
class Agent:
    def __call__(self, task, llm): return 1.0

def plain(task, llm): return 1.0
instance = Agent()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    file = tmp_path / "written.py"
    file.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("written", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "written", module)
    spec.loader.exec_module(module)
    yield module


@pytest.mark.parametrize("name", ["plain", "instance"])
@pytest.mark.parametrize(
    "filename", ["<stdin>", "<string>", "<ipython-input-3-0123456789ab>", "/tmp/ipykernel_123/456.py"]
)
def test_what_was_typed_over_a_files_own_is_not_taken_for_it(module: ModuleType, name: str, filename: str) -> None:
    """A process would import the file's, which is another than the one that was given."""
    source = find_source(getattr(module, name))
    assert source is not None and source.file == module.__file__
    exec(compile(TEXT, filename, "exec"), vars(module))
    assert find_source(getattr(module, name)) is None
    assert find_source(functools.partial(module.plain)) is None


def test_a_decorated_function_of_a_file_is_found(module: ModuleType) -> None:
    """Also where the wrapper was made by ``exec``, as some libraries make theirs."""
    space: dict[str, Any] = {"inner": module.plain}
    exec("def plain(task, llm): return inner(task, llm)", space)
    module.plain = functools.wraps(module.plain)(space["plain"])
    assert find_source(module.plain) is not None


def test_a_function_in_a_zip_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("packed_agent.py", TEXT)
    monkeypatch.syspath_prepend(str(tmp_path / "packed.zip"))
    import packed_agent  # pyright: ignore[reportMissingImports]

    monkeypatch.setitem(sys.modules, "packed_agent", packed_agent)
    source = find_source(packed_agent.plain)
    assert source is not None and source.module == "packed_agent"


# --------------------------------------------------------------------------- errors


def fail(cause: Exception | None = None) -> None:
    with short_errors():
        try:
            raise cause or KeyError("inner")
        except Exception as error:
            raise ConfigError("a sentence") from error


def test_an_error_leaves_as_its_sentence() -> None:
    with pytest.raises(ConfigError, match="a sentence") as caught:
        fail()
    frames = [entry.name for entry in caught.traceback]
    assert frames == ["test_an_error_leaves_as_its_sentence"], "the caller's own line, and none of ours"
    assert caught.value.__suppress_context__


def test_debug_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = configure_logger("DEBUG")
    try:
        with pytest.raises(ConfigError) as caught:
            fail()
    finally:
        logger.setLevel(0)
    assert "fail" in [entry.name for entry in caught.traceback]
    assert isinstance(caught.value.__cause__, KeyError)


def test_other_errors_keep_all_of_their_frames() -> None:
    with pytest.raises(ZeroDivisionError) as caught, short_errors():
        divide(0)
    assert "divide" in [entry.name for entry in caught.traceback], "a defect is not hidden"


def divide(by: int) -> float:
    return 1 / by


def test_a_parse_that_another_thread_disturbed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of Python 3.11 and 3.12: SystemError where two threads parse at the same moment."""
    real, failures = ast.parse, [SystemError("AST constructor recursion depth mismatch (before=183, after=39)")]

    def disturbed(*arguments: Any) -> ast.Module:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ast.unparse(parsed("a = 1")) == "a = 1" and not failures


def test_a_group_of_errors_is_told_by_its_cause() -> None:
    """An MCP server that does not start comes out of anyio's task groups so."""
    cause = FileNotFoundError(2, "No such file or directory", "uvx")
    group = BaseExceptionGroup("unhandled errors in a TaskGroup", [BaseExceptionGroup("inner", [cause, ValueError()])])
    assert describe(group) == "FileNotFoundError: [Errno 2] No such file or directory: 'uvx'"
    assert describe(ValueError("one\ntwo")) == "ValueError: one"


def test_an_error_is_told_with_what_it_was_raised_from_where_that_says_more() -> None:
    cause = FileNotFoundError(2, "No such file or directory", "uvx")
    group = BaseExceptionGroup("unhandled errors in a TaskGroup", [cause])
    for inner in (cause, group):
        outer = RuntimeError("Failed to connect to the MCP server. Please check your configuration.")
        outer.__cause__ = inner
        assert describe(outer) == (
            "RuntimeError: Failed to connect to the MCP server. Please check your configuration. "
            "(from FileNotFoundError: [Errno 2] No such file or directory: 'uvx')"
        )
    said = "cannot start 'uvx': [Errno 2] No such file or directory: 'uvx'"
    assert describe(RuntimeError(said, cause)) == f"RuntimeError: {said}"
    assert describe(ConnectionError("aborted", OSError("reset"))) == "ConnectionError: aborted (from OSError: reset)"
