"""Runs agent frameworks, each in an environment and a process of its own, against a real gateway, and writes
docs/frameworks.md and docs/compatibility.md.

make test-frameworks                                   all of them
make test-frameworks ARGS="openai-agents strands"      some
make test-frameworks ARGS="strands --keep"             keep the environment for the next time
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.frameworks import compatibility, page
from tests.frameworks.cases import CASES
from tests.frameworks.catalog import FRAMEWORKS, Framework, Setup
from tests.frameworks.environment import PROGRAMS, ROOT, CannotInstall, prepare, run_bounded, with_ours
from tests.frameworks.judge import Verdict, judge

MODEL = "gpt-4o-mini"
LIMIT = 60.0
"""Seconds for one program: the conversations of one setup."""
NAMING_LIMIT = 180.0
"""Seconds for one program whose agents' names are looked at: two rollouts in processes and two in threads."""
MARK = "AGL-CASE "
NAMES = "AGL-NAMES "


class House:
    """The gateway's process, asked over its standard input and output."""

    def __init__(self, module: str = "tests.frameworks.house") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **question: str) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the gateway's process ended: its last words are above")
        return json.loads(answer)

    def __enter__(self) -> House:
        return self

    def __exit__(self, *failed: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def converse(framework: Framework, setup: Setup, command: list[str], house: House, *, loud: bool) -> dict[str, Verdict]:
    """Has every conversation of a setup and judges them. The keys are `CASE.json` and `CASE.stream`."""
    cases = {
        f"{case.name}.{'stream' if stream else 'json'}": (case, stream) for stream in setup.streams for case in CASES
    }
    asked: list[dict[str, Any]] = []
    for name, (case, stream) in cases.items():
        urls = house.ask(open=name)
        asked.append(
            {"id": name, "name": case.name, "stream": stream, "model": MODEL, "question": case.question, **urls}
        )
    environment = {"AGL_AGENT": setup.agent, "AGL_CASES": json.dumps(asked), **framework.environment}
    with tempfile.TemporaryDirectory(prefix="agl-agent-") as folder:
        out, err, wrong = run_bounded(command, environment, Path(folder), LIMIT)
    views: dict[str, Any] = {}
    for line in out.splitlines():
        if line.startswith(MARK):
            view, _ = json.JSONDecoder().raw_decode(
                line.removeprefix(MARK)
            )  # a program's own words may follow on the line
            views[view.pop("id")] = view
    if loud or not views:
        sys.stderr.write(err[-20_000:])
    missing: dict[str, Any] = {"error": f"NoAnswer: {wrong or 'the program said nothing'}", "seen": []}
    return {
        name: judge(case, setup.spoken, house.ask(close=name), views.get(name, missing))
        for name, (case, _) in cases.items()
    }


def name(program: str, python: str, *, loud: bool) -> tuple[dict[str, bool], list[str]]:
    """Whether the calls of a program are recorded under its agents' names, by isolation, and what is wrong."""
    path = PROGRAMS / program
    wanted = next(
        ast.literal_eval(node.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CALLS"
    )
    command = [python, "-m", "tests.frameworks.named", str(path)]
    out, err, wrong = run_bounded(command, {"PYTHONPATH": str(ROOT)}, ROOT, NAMING_LIMIT)
    said = next((json.loads(line.removeprefix(NAMES)) for line in out.splitlines() if line.startswith(NAMES)), None)
    if loud or said is None:
        sys.stderr.write(err[-20_000:])
    if said is None:
        return {}, [f"{program}: {wrong or 'the program said nothing'}"]
    found = {isolation: each["calls"] == [wanted] and not each["failed"] for isolation, each in said.items()}
    return found, [f"{program}, {each}: wanted {wanted}, got {said[each]}" for each in found if not found[each]]


def settled(setup: Setup, verdicts: dict[str, Verdict]) -> list[str]:
    """What is not as the catalog says, a line or a diff each."""
    failures: list[str] = []
    for name, verdict in verdicts.items():
        case, way = name.rsplit(".", 1)
        known = setup.why(case, way == "stream")
        if verdict.view or (verdict.problems and not known):
            failures.append(f"{name}: " + "\n  ".join(verdict.problems))
        elif known and not verdict.problems and verdict.outcome == "exact":
            failures.append(f"{name}: is exact, though the catalog knows why it can't be ({known}): take that out")
    return failures


def run(
    framework: Framework, folder: Path, house: House, *, keep: bool, loud: bool
) -> tuple[dict[str, Any], list[str]]:
    """A framework's entry in the results, and its failures."""
    began = time.monotonic()
    entry: dict[str, Any] = {"version": framework.version}
    if framework.absent:
        return {**entry, "absent": framework.absent}, []
    failures: list[str] = []
    try:
        command = prepare(framework, folder)
        entry["setups"] = {}
        for setup in framework.setups:
            verdicts = converse(framework, setup, command, house, loud=loud)
            entry["setups"][setup.agent] = {name: page.kept(verdict) for name, verdict in verdicts.items()}
            wrong = settled(setup, verdicts)
            failures += [f"{framework.name} ({setup.agent}) {line}" for line in wrong]
            exact = sum(verdict.outcome == "exact" for verdict in verdicts.values())
            of = sum(not case.broken for case in CASES) * len(setup.streams)
            print(
                f"{framework.name} {framework.version}, {setup.wire}: {exact} of {of} exact, {len(wrong)} failures",
                flush=True,
            )
        python = with_ours(folder) if framework.names else ""
        for what, program in framework.names.items():
            found, wrong = name(program, python, loud=loud)
            entry.setdefault("names", {})[what] = found
            failures += [f"{framework.name} {line}" for line in wrong]
            print(f"{framework.name} {framework.version}, names of {what}: {len(wrong)} failures", flush=True)
    except CannotInstall as error:
        entry["absent"] = f"cannot be installed here: {error}"
        print(f"{framework.name} {framework.version}: {entry['absent']}", flush=True)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{framework.name}: {time.monotonic() - began:.0f} s", flush=True)
    return entry, failures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make test-frameworks", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="FRAMEWORK",
        help="all where none is named: " + ", ".join(each.name for each in FRAMEWORKS),
    )
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".venv-frameworks", help="where the environments are made"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments for the next time")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page anew from the results")
    parser.add_argument("--loud", action="store_true", help="show what the programs write to standard error")
    found = parser.parse_args()
    unknown = set(found.names) - {each.name for each in FRAMEWORKS}
    if unknown:
        parser.error(
            f"there is no framework {', '.join(sorted(unknown))} here: they are "
            f"{', '.join(each.name for each in FRAMEWORKS)}"
        )
    return found


def _write(results: page.Results) -> None:
    page.write(results)
    compatibility.write()


def main() -> None:
    asked = arguments()
    failures: list[str] = []
    if asked.page:
        _write(page.read())
        return
    with House() as house:
        for framework in FRAMEWORKS:
            if asked.names and framework.name not in asked.names:
                continue
            entry, wrong = run(
                framework,
                asked.environments / framework.name.replace("/", "-"),
                house,
                keep=asked.keep,
                loud=asked.loud,
            )
            failures += wrong
            _write({**page.read(), framework.name: entry})
    print("\n\n".join(failures) or "no failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
