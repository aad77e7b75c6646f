"""docs/compatibility.md: what had to be changed in programs, and what was recorded of them, from what
`make test-frameworks` measured. Pure but for reading and writing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.frameworks.cases import CASES
from tests.frameworks.catalog import FRAMEWORKS, Framework
from tests.frameworks.page import BROKEN, Results, cells, read

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

HEAD = """\
# Compatibility

Programs as their users write them, and what this package makes of them. `make test-frameworks` measures it and writes this page.

- **lines changed**: of the program, so that its calls come here. 0: the framework reads the environment that a run sets ([agents](agents.md#environment)).
- **calls and tokens**: of the conversations whose calls are known beforehand, those in which the record has every call that was made and no other, and each call's prompt begins with all tokens that were prompted and
  sampled before. What is missing is told in [frameworks](frameworks.md).
- **agents' names**: of the programs of several agents, run in threads and in processes, those in which each call is recorded under the name that the framework gives its agent
  ([how](agents.md#names-out-of-frameworks)).

| program | framework | version | lines changed | calls and tokens | agents' names |
| --- | --- | --- | --- | --- | --- |
"""


def page(results: Results) -> str:
    return HEAD + "".join(row for framework in FRAMEWORKS for row in rows(framework, results.get(framework.name, {})))


def rows(framework: Framework, entry: Mapping[str, Any]) -> list[str]:
    """Of each API that the framework speaks; of one whose programs are there for their agents' names alone, one."""
    setups: Mapping[str, Mapping[str, Any]] = entry.get("setups", {})
    named = [all(ways.values()) and bool(ways) for ways in entry.get("names", {}).values()]
    names = f"{sum(named)} of {len(named)}" if named else ""
    found: list[str] = []
    for setup in framework.setups:
        if setup.agent in setups:
            known = [each for case, each in setups[setup.agent].items() if case.rsplit(".", 1)[0] not in BROKEN]
            exact = f"{sum(each['outcome'] == 'exact' for each in known)} of {len(known)}"
            changed = "0" if setup.sets.startswith("nothing") else "1"
            what = f"an agent with two tools, {len(CASES)} conversations, {setup.wire}"
            found.append(cells(what, framework.name, entry["version"], changed, exact, names))
    if not framework.setups and named:
        found.append(cells("several agents", framework.name, entry["version"], "", "", names))
    return found


def write() -> None:
    PAGE.write_text(page(read()))
