"""Logging as programs set it up."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentlightning import configure_logger, setup_logging
from agentlightning.errors import ConfigError

NAMES = ("agentlightning", "agentlightning.gateway", "my_app", "other", "py.warnings")


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(each, each.level, list(each.handlers), each.propagate) for each in loggers]
    yield
    for logger, level, handlers, propagate in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate = propagate
    logging.captureWarnings(False)


FORMS: list[tuple[Callable[[], Any], int]] = [
    (lambda: setup_logging(), logging.INFO),
    (lambda: setup_logging("DEBUG"), logging.DEBUG),
    (lambda: setup_logging("debug"), logging.DEBUG),
    (lambda: setup_logging(level=logging.WARNING), logging.WARNING),
    (lambda: setup_logging("INFO", None), logging.INFO),
    (lambda: setup_logging("INFO", apply_to=["my_app"]), logging.INFO),
    (lambda: setup_logging("INFO", apply_to="my_app"), logging.INFO),
    (lambda: setup_logging(color=False, disable_existing_loggers=False), logging.INFO),
    (lambda: configure_logger(), logging.INFO),
    (lambda: configure_logger(logging.DEBUG), logging.DEBUG),
    (lambda: configure_logger("DEBUG"), logging.DEBUG),
    (lambda: configure_logger(level=logging.INFO, name="agentlightning"), logging.INFO),
]


@pytest.mark.parametrize(("form", "level"), FORMS, ids=range(len(FORMS)))
def test_each_form_sends_records_from_its_level_up_to_stderr_once(
    form: Callable[[], Any], level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("agentlightning").handlers.clear()
    form()
    form()
    logger = logging.getLogger("agentlightning.gateway")
    logger.log(level, "heard\x1b[31m")
    logger.log(level - 5, "not heard")
    said = capsys.readouterr().err
    assert said.count("heard") == 1 and "not heard" not in said and "\x1b" not in said


def test_other_loggers_are_set_up_alike_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("my_app").info("before")
    setup_logging("INFO", apply_to=["my_app"], submodule_levels={"other": "ERROR"})
    setup_logging("INFO", apply_to=["my_app"])
    logging.getLogger("my_app").info("after")
    assert capsys.readouterr().err.count("after") == 1 and logging.getLogger("other").level == logging.ERROR


def test_records_go_to_files_and_to_handlers_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    setup_logging(console=False, files=tmp_path / "all.log", extra_handlers=[Keeps()])
    logging.getLogger("agentlightning").warning("one")
    setup_logging(console=False, files={"agentlightning": str(tmp_path / "own.log")})
    logging.getLogger("agentlightning").warning("two")
    assert kept == ["one"] and capsys.readouterr().err == ""
    assert "one" in (tmp_path / "all.log").read_text() and "two" not in (tmp_path / "all.log").read_text()
    assert "two" in (tmp_path / "own.log").read_text()


def test_captured_warnings_go_where_the_records_go(tmp_path: Path) -> None:
    setup_logging(console=False, files=tmp_path / "all.log", capture_warnings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)  # as the block of warnings began with Python's own way to show them
        warnings.warn("mind the gap", stacklevel=1)
    assert "mind the gap" in (tmp_path / "all.log").read_text()


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (lambda: setup_logging("LOUD"), "'LOUD' is no level: use DEBUG, INFO"),
        (lambda: setup_logging(rotate=True), r"setup_logging\(rotate=...\) has no part behind it: it takes level"),
        (lambda: setup_logging(files="no/such/folder/a.log"), "No such file or directory"),
    ],
)
def test_what_cannot_be_set_up_is_one_clear_line(form: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        form()
