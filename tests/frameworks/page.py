"""docs/frameworks.md, made of what was measured (results.json beside this file) and what the catalog says. Pure but for
reading and writing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.frameworks.cases import CASES
from tests.frameworks.catalog import FRAMEWORKS, Framework, Setup
from tests.frameworks.judge import Verdict

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"

Results = dict[str, dict[str, Any]]
"""By framework: `version`, and `setups` (by agent, by `CASE.json` or `CASE.stream`: outcome and problems) or `absent`,
the reason why it was not run."""

HEAD = """\
# Frameworks

Agents that were run as they are, each in an environment of its own, against the gateway. `make test-frameworks` runs them again and writes this page;
`make test-frameworks ARGS="openai-agents strands"` runs some. All that an agent gets is the environment that a run sets for it
([agents](agents.md#environment)): where the table says *nothing*, the framework finds the endpoint by itself.

Each agent has two tools and holds {cases} conversations, with whole replies and with streamed ones: one call, parallel calls followed by another, arguments with
odd spaces, escapes and nesting, unicode, reasoning, and two that go wrong: arguments that are no JSON, and a tool that does not exist. What the model says is a script,
so that all of it is known beforehand.

- **streaming**: the ways to reply that were run.
- **tools**: in how many conversations the tools were run with just the arguments that were sampled, every result came back under its call's id, and the agent
  ended with the model's last words.
- **exact tokens**: in how many conversations the record is one path, in which each prompt begins with all tokens that were prompted and sampled before.
- The conversations that go wrong count in neither, because what an agent does then is its own affair. The last column tells: it *goes on* with another call, goes on
  *changed* (it sends another turn back than was sampled, so that a branch begins), *stops* there, or *raises*. What was sampled before is recorded in each case.

| framework | version | wire | streaming | tools | exact tokens | what to set | known limits |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

NAMES = """
## Names of agents

Programs of several agents, run in threads and in processes as a run does. Each call has to be recorded under the name that the framework gives the agent
that made it ([how](agents.md#names-out-of-frameworks)), with nothing in the program for it: two at once, whole and streamed replies.

| framework | version | named are | threads | processes |
| --- | --- | --- | --- | --- |
"""

NOT_RUN = """
## Not run

| framework | version | why |
| --- | --- | --- |
"""

BROKEN = {"bad-json": "arguments that are no JSON", "unknown-tool": "a tool that does not exist"}


def kept(verdict: Verdict) -> dict[str, Any]:
    """What the results hold of a verdict: no diffs, whose ids change from run to run."""
    held: dict[str, Any] = {"outcome": verdict.outcome}
    for kind, problems in (("tokens", verdict.tokens), ("tools", verdict.ids + verdict.view)):
        if problems:
            held[kind] = len(problems)
    return held


def read() -> Results:
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


def write(results: Results) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(results))


def page(results: Results) -> str:
    ran: list[str] = []
    absent: list[str] = []
    for framework in FRAMEWORKS:
        entry = results.get(framework.name)
        if entry is None:
            absent.append(cells(framework.name, framework.version, "never run yet"))
        elif "absent" in entry:
            absent.append(cells(framework.name, entry["version"], entry["absent"]))
        else:
            ran += [row(framework, setup, entry) for setup in framework.setups if setup.agent in entry["setups"]]
    named = [row for framework in FRAMEWORKS for row in named_rows(framework, results.get(framework.name, {}))]
    parts = [HEAD.format(cases=len(CASES)), *ran, *([NAMES, *named] if named else ())]
    return "".join([*parts, *([NOT_RUN, *absent] if absent else ())])


def named_rows(framework: Framework, entry: Mapping[str, Any]) -> list[str]:
    found: Mapping[str, Mapping[str, bool]] = entry.get("names", {})
    return [
        cells(framework.name, entry["version"], what, *(_all_or_not(ways.get(way)) for way in ("thread", "process")))
        for what, ways in found.items()
    ]


def _all_or_not(right: bool | None) -> str:
    return "all calls" if right else "**fails**"


def cells(*texts: str) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |\n"


def row(framework: Framework, setup: Setup, entry: Mapping[str, Any]) -> str:
    found: Mapping[str, Any] = entry["setups"][setup.agent]
    whole = {name: each for name, each in found.items() if name.rsplit(".", 1)[0] not in BROKEN}
    counts = [f"{sum(kind not in each for each in whole.values())} of {len(whole)}" for kind in ("tools", "tokens")]
    ways = "always" if setup.streams == (True,) else "both" if True in setup.streams else "no"
    return cells(
        framework.name, entry["version"], setup.wire, ways, *counts, setup.sets, "; ".join(limits(setup, found))
    )


def limits(setup: Setup, found: Mapping[str, Any]) -> list[str]:
    told = [setup.limits] if setup.limits else []
    for name, each in found.items():
        case, way = name.rsplit(".", 1)
        if "tokens" in each or "tools" in each:
            told.append(setup.why(case, way == "stream") or f"**fails**: {case} ({way})")
    for case, what in BROKEN.items():
        outcomes = {
            way: each["outcome"]
            for name, each in found.items()
            for named, way in [name.rsplit(".", 1)]
            if named == case
        }
        if len(set(outcomes.values())) == 1:
            told.append(f"{what}: {next(iter(outcomes.values()))}")
        else:
            told += [f"{what} ({way}): {outcome}" for way, outcome in outcomes.items()]
    return list(dict.fromkeys(told))
