"""Loading: finds user code by ``FILE.py:name`` or ``pkg.mod:name`` and imports it, and tells where a given object could
be imported from again.

Every failure is a ConfigError of one line that a user can act on; the user's own traceback is kept with it. Imports
nothing of ours but errors, text and the logger's name.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

from agentlightning.errors import AgentLightningError, ConfigError, RunFailed
from agentlightning.logs import NAME
from agentlightning.text import at_home


@dataclass(frozen=True, slots=True)
class AgentSource:
    """Where an object can be imported from: a ``module`` where it has an importable name, else its ``file``, and the
    dotted ``attribute`` in it.

    ``given`` is how messages name it. At least one of ``file`` and ``module`` is set.
    """

    file: str | None
    module: str | None
    attribute: str
    given: str

    @property
    def package(self) -> str:
        """The top-level name the user's code goes by in ``sys.modules``."""
        return self.module.split(".")[0] if self.module is not None else Path(self.file or "").stem


def parse_path(path: str) -> AgentSource:
    """Reads ``FILE.py:name`` or ``pkg.mod:name``. Of a file, checks that it exists, parses, and binds the name. Raises
    ConfigError."""
    place, colon, attribute = path.rpartition(":")
    if not colon or not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise ConfigError(f"{path!r} names no object: expected FILE.py:name or pkg.mod:name")
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")) or not _is_there(place.split(".")[0]):
            raise ConfigError(
                f"{path!r}: {place!r} is neither a .py file nor a module that can be found: expected FILE.py:name or "
                "pkg.mod:name"
            )
        return AgentSource(None, place, attribute, path)
    file = at_home(place).resolve()
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path!r}: {file} cannot be read: {error.strerror or error}") from error
    try:
        tree = parsed(text, str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(
            f"{path!r}: {file.name}{f' line {line}' if line else ''} is not valid Python: "
            f"{getattr(error, 'msg', error)}"
        ) from error
    names = _bound_names(tree)
    first = attribute.split(".")[0]
    if names is not None and first not in names:
        raise ConfigError(f"{path!r}: {file.name} defines no {first!r}{_nearest(first, names)}")
    return AgentSource(str(file), None, attribute, path)


def parsed(text: str | bytes, name: str = "<unknown>") -> ast.Module:
    """``ast.parse``. Python before 3.13 raises a SystemError where two threads parse at the same moment; what was said
    then means nothing, so it is asked again."""
    for _ in range(9):
        try:
            return ast.parse(text, name)
        except SystemError:
            continue
    return ast.parse(text, name)


def _is_there(name: str) -> bool:
    """Whether a top-level module can be found, also in the current folder, as ``python -m`` would."""
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _bound_names(tree: ast.Module) -> set[str] | None:
    """Names a module binds at its top level, or None where that cannot be told without running it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("globals", "exec", "setattr")
        ):
            return None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "__getattr__" in names else names


def _nearest(name: str, names: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(names), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def import_source(source: AgentSource) -> Any:
    """Imports the object. Raises ConfigError with the user's own exception as its cause."""
    try:
        module = (
            importlib.import_module(source.module)
            if source.module is not None
            else _import_file(Path(source.file or ""))
        )
    except (Exception, SystemExit) as error:  # whatever user code raises while it is imported is told to the user
        raise _import_failed(source, error) from error
    value: Any = module
    for part in source.attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(
                f"{source.given!r}: {source.file or source.module} defines no "
                f"{part!r}{_nearest(part, set(vars(module)))}"
            )
        value = getattr(value, part)
    return value


def load_object(path: str) -> Any:
    """The object at ``FILE.py:name`` or ``pkg.mod:name``, imported into this process. Raises ConfigError."""
    return import_source(parse_path(path))


def _import_file(file: Path) -> ModuleType:
    """Imports a file under its own stem, as ``import stem`` would, or under a longer name where the stem belongs to
    something else."""
    folder, name = str(file.parent), file.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(name)
    if loaded is not None and _file_of(loaded) == file:
        return loaded
    if loaded is not None or not name.isidentifier() or not _is_found_as(name, file):
        plain = "".join(c if c.isalnum() else "_" for c in name)
        name = f"_agent_{plain}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
        loaded = sys.modules.get(name)
        if loaded is not None:
            return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _is_found_as(name: str, file: Path) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _import_failed(source: AgentSource, error: BaseException) -> ConfigError:
    if (
        isinstance(error, ModuleNotFoundError)
        and source.module is not None
        and error.name
        and f"{source.module}.".startswith(f"{error.name}.")
    ):
        return ConfigError(
            f"{source.given!r}: there is no module {error.name!r} to import; is it installed, or in the current folder?"
        )
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = f"; install what provides {error.name!r}"
    elif "attempted relative import" in str(error):
        hint = "; name it as a module, pkg.mod:name, from the folder that holds the package"
    place = where(error)
    return ConfigError(f"{source.given!r} cannot be imported: {describe(error)}{f' ({place})' if place else ''}{hint}")


def find_source(obj: object) -> AgentSource | None:
    """Where ``obj`` can be imported from again, or None: it must be bound by a name in a module that has a file, and
    its code be in a file too."""
    if _was_typed_in(obj):
        return None
    home: str = getattr(obj, "__module__", None) or ""
    for name in dict.fromkeys((home, "__main__", *sys.modules)):
        module = sys.modules.get(name)
        file = _file_of(module) if module is not None else None
        if module is None or file is None or file.suffix != ".py" or (name != home and is_library(str(file))):
            continue
        attribute = _attribute(module, obj)
        if attribute is None:
            continue
        if name == "__main__":  # `python -m pkg.mod` knows the module's real name, `python FILE.py` does not
            name = module.__spec__.name if module.__spec__ is not None else ""
        if name and _is_importable(name, file):
            return AgentSource(str(file), name, attribute, f"{name}:{attribute}")
        return AgentSource(str(file), None, attribute, f"{file.name}:{attribute}")
    return None


def _was_typed_in(obj: object) -> bool:
    """Whether no file holds the code of a function, or of an instance's class: it comes from a prompt, a notebook's
    cell, ``python -c`` or ``exec``, and a module of that name with a file may hold other code (``python -i FILE.py``,
    ``%run``)."""
    function: Any = getattr(obj, "func", obj)  # of a partial
    function = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else function
    own = getattr(function, "__code__", None)
    codes = (
        [own]
        if own is not None
        else [code for value in vars(type(obj)).values() if (code := getattr(value, "__code__", None)) is not None]
    )
    return bool(codes) and not any(_is_in_a_file(code.co_filename) for code in codes)


def _is_in_a_file(filename: str) -> bool:
    path = Path(filename)
    # Also a zip
    return not filename.startswith("<") and (
        not path.is_absolute() or any(part.is_file() for part in (path, *path.parents))
    )


def _is_importable(name: str, file: Path) -> bool:
    try:
        return _is_found_as(name, file)
    except (ImportError, ValueError):
        return False


def _attribute(module: ModuleType, obj: object) -> str | None:
    qualname = getattr(obj, "__qualname__", None)
    if isinstance(qualname, str) and "<" not in qualname:
        value: Any = module
        for part in qualname.split("."):
            value = inspect.getattr_static(value, part, None)
        if value is obj or getattr(value, "__func__", None) is obj:
            return qualname
    return next((name for name, value in vars(module).items() if value is obj and name.isidentifier()), None)


# --------------------------------------------------------------------------- exceptions in words


def describe(error: BaseException) -> str:
    """An exception in one line of at most 300 characters: ``ValueError: the first line of what it says``, and what it
    was raised from where that says more. Of a group (an MCP server that does not start ends in one) its first cause."""
    error = _first(error)
    if isinstance(error, AgentLightningError):
        line = _one_line(str(error))
    else:
        line, cause = _told(error)
        if cause is not None and (said := _told(_first(cause))[0]).partition(": ")[2] not in line:
            line = f"{line} (from {said})"
    return line if len(line) <= 300 else line[:297] + "..."


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseException", error.exceptions[0])
    return error


def _told(error: BaseException) -> tuple[str, BaseException | None]:
    """An exception's kind and the first line of what it says, and what it was raised from."""
    cause = error.__cause__
    try:
        match error.args:
            case (str(said), BaseException() as inner):  # as text it is a tuple
                cause = inner
            case _:
                said = str(error)
    except BaseException as second:  # noqa: BLE001  # user classes may fail to print themselves, in any way
        said = f"(its text cannot be shown: {type(second).__name__})"
    said = _one_line(said)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__, cause


def _one_line(text: str) -> str:
    return " ".join(text.split("\n", 1)[0].split())


def where(error: BaseException) -> str:
    """``file.py:12`` of the innermost frame that is the user's, or ``""``."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_foreign(frame.filename)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def user_traceback(error: BaseException, limit: int = 16_384) -> str:
    """The traceback from the user's first frame on, as text; of a long one the last ``limit`` characters."""
    text = "".join(traceback.format_exception(type(error), error, users_part(error)))
    return text if len(text) <= limit else "...\n" + text[-limit:]


def users_part(error: BaseException) -> TracebackType | None:
    """The traceback from the user's first frame on."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None and _is_ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    return tb


class short_errors:
    """Around what a user calls: an error of this package leaves it as its sentence, without the frames it came through
    and what it was made from.

    What user code raised stays with it, from the user's first frame on. ``configure_logger("DEBUG")`` shows everything.
    """

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, AgentLightningError | KeyboardInterrupt) and not logging.getLogger(NAME).isEnabledFor(
            logging.DEBUG
        ):
            shorten(error)


def shorten(error: BaseException) -> None:
    """Takes an error's frames away, and its cause's where no user code raised it. A RunFailed keeps its cause: that may
    be a defect of this package."""
    error.__traceback__ = None
    cause = error.__cause__
    if cause is not None and where(cause):
        cause.__traceback__ = users_part(cause)
    elif not isinstance(error, RunFailed):
        error.__cause__ = None
    error.__suppress_context__ = True


_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for key, path in sysconfig.get_paths().items()
        if key in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


def is_library(filename: str) -> bool:
    """Whether a file belongs to Python or to an installed package, rather than to the user's project."""
    return "site-packages" in filename or "dist-packages" in filename or filename.startswith(("<", *_LIBRARIES))


def _is_ours(filename: str) -> bool:
    return filename.startswith((_PACKAGE, "<frozen importlib")) or "/asyncio/" in filename


def is_foreign(filename: str) -> bool:
    """Whether a file is ours, Python's or an installed package's, rather than the user's."""
    return _is_ours(filename) or is_library(filename)
