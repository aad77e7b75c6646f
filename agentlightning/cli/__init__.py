"""The ``agl`` command. Importing this loads nothing; ``main`` loads the commands, and each command loads what it
needs."""

from __future__ import annotations


def main() -> None:
    """Runs ``agl`` on the process's arguments and exits. See docs/cli.md for the exit codes."""
    from agentlightning.cli.app import app
    from agentlightning.cli.streams import let_go, make_safe
    from agentlightning.engines.local.thread_count import bound_spinning

    make_safe()
    bound_spinning()
    try:
        app(prog_name="agl")
    finally:
        let_go()
