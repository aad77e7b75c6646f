"""The page of what is not here, made from the tables: ``python -m agentlightning.spellings.page > docs/absent.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from agentlightning.spellings.absent import ABSENT, Absent
from agentlightning.spellings.paths import MODULES

_INTRODUCTION = """\
# What is not here

This page is made from the tables of `agentlightning/spellings/`; a test holds it in step.

Whatever is written for something that this version does not have, as an argument, a setting, a flag, a command or an
import, is refused with the sentence below. Capitals, dashes and a section in front make no difference. The last column
has the names that are known."""


def page() -> str:
    """The page, as Markdown."""
    lines = [_INTRODUCTION, "", "## Not in this version", "", *_table(entry for entry in ABSENT if not entry.synonym)]
    lines += ["", "## Here, under another name", "", *_table(entry for entry in ABSENT if entry.synonym)]
    lines += [
        "",
        "## Modules",
        "",
        "Programs written for this package import these, below `agentlightning`.",
        "",
        "| path | today |",
        "|---|---|",
    ]
    lines += [f"| `agentlightning.{path}` | {_cell(today)} |" for path, today in MODULES.items()]
    return "\n".join(lines) + "\n"


def _table(entries: Iterator[Absent]) -> Iterator[str]:
    yield "| | today | names |"
    yield "|---|---|---|"
    for entry in entries:
        yield (
            f"| {_cell(entry.what)} | {_cell(entry.today)} | {' '.join(f'`{name}`' for name in entry.names.split())} |"
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
