"""``setup_logging`` and ``configure_logger`` as programs call them: over Python's own logging, and over this package's
logger, which is silent until it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentlightning.errors import ConfigError
from agentlightning.logs import NAME, LineFormatter, configure_logger

__all__ = ["configure_logger", "setup_logging"]


def setup_logging(
    level: int | str = "INFO",
    apply_to: str | Iterable[str] | None = None,
    *,
    console: bool = True,
    propagate: bool = False,
    files: str | Path | Mapping[str, str | Path] | None = None,
    submodule_levels: Mapping[str, int | str] | None = None,
    capture_warnings: bool = False,
    extra_handlers: Iterable[logging.Handler] = (),
    formatter: logging.Formatter | None = None,
    color: object = False,
    **others: Any,
) -> None:
    """Sends the records of this package, and of the loggers named by ``apply_to``, from ``level`` up to stderr (with
    ``console`` False nowhere), to ``files`` and to ``extra_handlers``.

    ``files`` is one path for all of them, or a path by the logger's name. ``submodule_levels`` are levels by the
    logger's name. With ``propagate`` their records go to the root logger's handlers too, with ``capture_warnings``
    Python's warnings are records and go where the others go. ``color`` is taken and changes nothing: lines are plain.
    Calling it again sets all of this anew. Raises ConfigError for an unknown level or argument, and for a file that
    cannot be written.
    """
    refused = [name for name, value in others.items() if name != "disable_existing_loggers" or value]
    if refused:
        known = (
            "level, apply_to, console, propagate, files, submodule_levels, capture_warnings, extra_handlers, formatter"
        )
        raise ConfigError(f"setup_logging({refused[0]}=...) has no part behind it: it takes {known}")
    names = [NAME, *([apply_to] if isinstance(apply_to, str) else apply_to or ())]
    if capture_warnings:
        names.append("py.warnings")
    used = formatter or LineFormatter()
    shared = [*extra_handlers]
    if console:
        shared.append(_styled(logging.StreamHandler(), used))
    for name in dict.fromkeys(names):
        logger = logging.getLogger(name)
        _set_level(logger, level)
        for handler in list(logger.handlers):
            if getattr(handler, "_agentlightning", False) or name == NAME:
                logger.removeHandler(handler)
                if isinstance(handler, logging.FileHandler) and getattr(handler, "_agentlightning", False):
                    handler.close()
        own = files.get(name) if isinstance(files, Mapping) else files
        for handler in [*shared, *([_file(own, used)] if own is not None else [])]:
            logger.addHandler(handler)
        logger.propagate = propagate
    for name, own_level in (submodule_levels or {}).items():
        _set_level(logging.getLogger(name), own_level)
    if capture_warnings:  # else whoever has asked for it elsewhere keeps it
        logging.captureWarnings(True)


def _styled(handler: logging.Handler, formatter: logging.Formatter) -> logging.Handler:
    handler.setFormatter(formatter)
    handler.__dict__["_agentlightning"] = True  # so that the next call finds it
    return handler


def _file(path: str | Path, formatter: logging.Formatter) -> logging.Handler:
    try:
        return _styled(logging.FileHandler(path, encoding="utf-8", delay=False), formatter)
    except OSError as error:
        raise ConfigError(f"setup_logging(files={str(path)!r}): {error.strerror or error}") from error


def _set_level(logger: logging.Logger, level: int | str) -> None:
    try:
        logger.setLevel(level.upper() if isinstance(level, str) else level)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"setup_logging: {level!r} is no level: use DEBUG, INFO, WARNING, ERROR or CRITICAL"
        ) from error
