"""Runs other people's suites, each in an environment of its own, against a real gateway with a scripted model, and says
what passed, what failed and why.

make test-conformance                                  all of them
make test-conformance ARGS="langchain --keep"          one; keep the environment for the next time

A failure that `meant.py` does not explain gives exit code 1, and so does an explanation that nothing needs any more.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.meant import MEANT
from tests.frameworks.__main__ import House
from tests.frameworks.environment import CannotInstall, fetched, installed, run_bounded

ROOT = Path(__file__).resolve().parents[2]
SUITES = Path(__file__).parent / "suites"
LIMIT = 1200.0
"""Seconds for one suite."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test: its name, and what its failure said; None where it passed."""

    name: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class Suite:
    """``packages`` are what runs it, pinned; ``source`` is a package whose source archive has the tests, and ``tests``
    are the files of it that are run."""

    name: str
    packages: tuple[str, ...]
    run: Callable[[Suite, Path, House], list[Outcome]]
    source: str = ""
    tests: tuple[str, ...] = ()


PYTEST = ("pytest==9.1.0", "pytest-asyncio==1.4.0")


def langchain(suite: Suite, folder: Path, house: House) -> list[Outcome]:
    python = installed(folder / "venv", suite.packages)
    program = folder / "test_langchain.py"
    shutil.copy(
        SUITES / "langchain_suite.py", program
    )  # beside this package's tests, pytest would want what those want
    return tested([python, "-m", "pytest", "--rootdir", str(folder), str(program)], folder, house)


def sdk(suite: Suite, folder: Path, house: House) -> list[Outcome]:
    python = installed(folder / "venv", suite.packages)
    source = unpacked(suite, folder)
    return tested([python, "-m", "pytest", *(f"tests/{name}" for name in suite.tests)], source, house)


def json_schema(suite: Suite, folder: Path, house: House) -> list[Outcome]:
    del house
    tests = unpacked(suite, folder) / "json" / "tests"
    out, err, wrong = run_bounded(
        [sys.executable, "-m", "tests.conformance.suites.schemas", str(tests)], {}, ROOT, LIMIT
    )
    told = [json.loads(line) for line in out.splitlines()]
    print(f"json-schema: {dict(Counter(each['outcome'] for each in told))}")
    if wrong:
        told.append({"name": "the suite itself", "outcome": "wrong", "why": f"{wrong}: {err[-500:]}"})
    return [Outcome(each["name"], each["why"] if each["outcome"] == "wrong" else None) for each in told]


def unpacked(suite: Suite, folder: Path) -> Path:
    """The folder that the source archive of a suite holds."""
    place = folder / "source"
    if not place.is_dir():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            with tarfile.open(fetched(suite.source, Path(scratch))) as archive:
                archive.extractall(Path(scratch) / "out", filter="data")
            [only] = (Path(scratch) / "out").iterdir()
            only.rename(place)
    return place


def tested(command: list[str], cwd: Path, house: House) -> list[Outcome]:
    """What pytest says of each test."""
    urls = house.ask(open=command[-1])
    report = cwd / "report.xml"
    environment = {"AGL_BASE_URL": urls["base_url"], "AGL_ROOT_URL": urls["root_url"], "LANGSMITH_TRACING": "false"}
    environment["TEST_API_BASE_URL"] = urls["root_url"] if "anthropic" in str(cwd) else urls["base_url"]
    options = [
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-o",
        "asyncio_mode=auto",
        "-o",
        "asyncio_default_test_loop_scope=session",
        "-o",
        "filterwarnings=default",
        f"--junitxml={report}",
    ]
    out, err, wrong = run_bounded([*command, *options], environment, cwd, LIMIT)
    house.ask(close=command[-1])
    if not report.exists():
        return [Outcome("the suite itself", f"{wrong}: {(err or out)[-1500:]}")]
    outcomes: list[Outcome] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((each for each in case if each.tag in ("failure", "error")), None)
        if any(each.tag == "skipped" and "xfail" not in (each.get("type") or "") for each in case):
            continue
        said = None if problem is None else f"{problem.get('message') or ''}\n{problem.text or ''}"
        outcomes.append(Outcome(f"{(case.get('classname') or '').rpartition('.')[2]}.{case.get('name')}", said))
    report.unlink()
    return outcomes


OPENAI_TESTS = (
    "chat/test_completions.py", "chat/completions/test_messages.py", "test_completions.py", "test_responses.py",
    "responses/test_input_items.py",
    "responses/test_input_tokens.py", "test_conversations.py", "conversations/test_items.py", "test_models.py",
    "test_embeddings.py",
)  # fmt: skip
ANTHROPIC_TESTS = (
    "test_messages.py",
    "messages/test_batches.py",
    "test_models.py",
    "beta/test_messages.py",
    "beta/test_models.py",
)
SUITES_OF_OTHERS = (
    Suite("langchain", ("langchain-tests==1.1.9", "langchain-openai==1.7.4", "langchain-anthropic==1.7.10"), langchain),
    Suite(
        "openai", ("openai[aiohttp]==3.57.0", *PYTEST, "rich", "inline-snapshot"), sdk, "openai==3.57.0",
        tuple(f"api_resources/{each}" for each in OPENAI_TESTS)
    ),
    Suite(
        "anthropic", ("anthropic[aiohttp]==2.14.0", *PYTEST, "rich", "inline-snapshot", "http-snapshot[httpx]",
        "respx"), sdk, "anthropic==2.14.0",
        tuple(f"api_resources/{each}" for each in ANTHROPIC_TESTS),
    ),
    Suite("json-schema", (), json_schema, "jsonschema==4.26.0"),
)  # fmt: skip


def judged(suite: str, outcomes: list[Outcome]) -> list[str]:
    """Prints how a suite went, with each reason once. What nobody meant, a line each."""
    unexplained: list[str] = []
    reasons: Counter[str] = Counter()
    used: set[str] = set()
    for each in outcomes:
        if each.failure is None:
            continue
        found = next(
            ((pattern, why) for pattern, why in MEANT[suite] if re.search(pattern, f"{each.name}\n{each.failure}")),
            None,
        )
        if found is None:
            last = (
                [line for line in each.failure.splitlines() if line.startswith("E ")]
                or each.failure.splitlines()
                or [""]
            )
            unexplained.append(f"{suite}: {each.name}: {last[-1][:300]}")
        else:
            used.add(found[0])
            reasons[found[1]] += 1
    failed = sum(reasons.values()) + len(unexplained)
    print(f"{suite}: {len(outcomes) - failed} passed, {failed} failed, of which {sum(reasons.values())} are meant")
    for why, count in reasons.most_common():
        print(f"  {count} because {why}")
    needless = [pattern for pattern, _ in MEANT[suite] if pattern not in used]
    return [
        *unexplained,
        *(f"{suite}: nothing fails any more as {pattern!r} says: take it out of meant.py" for pattern in needless),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make test-conformance")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="SUITE",
        help="all where none is named: " + ", ".join(each.name for each in SUITES_OF_OTHERS),
    )
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".venv-conformance", help="where the environments are made"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments for the next time")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {each.name for each in SUITES_OF_OTHERS}:
        parser.error(f"there is no suite {', '.join(sorted(unknown))} here")
    wrong: list[str] = []
    with House("tests.conformance.house") as house:
        for suite in SUITES_OF_OTHERS:
            if asked.names and suite.name not in asked.names:
                continue
            folder = asked.environments / suite.name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                wrong += judged(suite.name, suite.run(suite, folder, house))
            except CannotInstall as error:
                print(f"{suite.name}: cannot be had here: {error}")
            finally:
                if not asked.keep:
                    shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(wrong) or "no failure that is not meant")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
