"""The package's logger. It stays silent until the program that uses it asks for output."""

from __future__ import annotations

import logging

from agentlightning.text import printable

NAME = "agentlightning"


class LineFormatter(logging.Formatter):
    """One line for each record. What stands in it comes from users and models too: no control character of it reaches a
    terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def configure_logger(level: int | str = logging.INFO, name: str = NAME) -> logging.Logger:
    """Sends the records of ``name`` from ``level`` up to stderr, one line each, and returns its logger.

    Calling it again changes the level and adds no second handler. Raises ValueError for an unknown level name.
    """
    logger = logging.getLogger(name)
    logger.setLevel(level)
    if not any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers):
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter())
        logger.addHandler(handler)
        logger.propagate = False
    return logger
