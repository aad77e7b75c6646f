"""Runs the examples small, each in an environment of its own with this package and what its ``requirements.txt`` names:
their frameworks cannot be installed together.

make test-examples                                all of them
make test-examples ARGS="calculator werewolf"     some
make test-examples ARGS="werewolf --keep"         keep the environment for the next time

Of each it runs `train.py --debug` and then `train.py --small`, with a tiny model of random weights, and looks at the
record: the run finished, its ledger adds up, calls were recorded and every one of them whole.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.records.ledger import Ledger, LedgerError
from tests import tiny
from tests.frameworks.environment import CannotInstall, installed, run_bounded

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/train.py"))
LIMIT = 300.0
"""Seconds for one program."""
CONTEXT = 16384
"""Tokens that the tiny model's context holds: one byte is one token, and frameworks write long prompts."""


def packages(example: Path) -> list[str]:
    """What pip installs for an example: this package with what samples and trains, and the example's own. torch is the
    build that this repository is tested with."""
    torch = next(line for line in requirements(ROOT / "constraints.txt") if line.startswith("torch=="))
    return ["-e", f"{ROOT}[train]", torch, *requirements(example / "requirements.txt")]


def requirements(file: Path) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    return [line for line in lines if line]


def wrong_with(result: Mapping[str, Any]) -> list[str]:
    """What is not as it should be in a run's ``result.json``."""
    found: list[str] = []
    if result["status"] != "finished":
        found.append(f"the run is {result['status']}, not finished")
    ledger = Ledger.from_json(result["ledger"])
    try:
        ledger.check()
    except LedgerError as error:
        found.append(str(error))
    calls = {name: count for name, count in ledger.calls.items() if count}
    if not calls.get("complete"):
        found.append(f"no whole call was recorded: {calls or 'no call at all'}")
    if calls.get("incomplete"):
        found.append(f"{calls['incomplete']} calls could not be recorded whole")
    if not result["steps"]:
        found.append("it made no step")
    return found


def try_out(example: Path, python: str, model: Path, folder: Path, *, loud: bool) -> list[str]:
    """Runs an example's program in both ways, and says what went wrong."""
    failures: list[str] = []
    program = [python, str(example / "train.py"), "--model", str(model), "--output-dir", str(folder / "runs")]
    for way in ("--debug", "--small"):
        began = time.monotonic()
        out, err, wrong = run_bounded([*program, way], {"HF_HUB_OFFLINE": "1", "COLUMNS": "120"}, folder, LIMIT)
        if wrong or loud:
            sys.stderr.write(f"{out[-20_000:]}\n{err[-20_000:]}\n")
        if wrong:
            failures.append(f"{example.name} {way}: {wrong}")
        print(f"{example.name} {way}: {time.monotonic() - began:.0f} s", flush=True)
    results = [json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*/result.json"))]
    if not results:
        failures.append(f"{example.name} --small: there is no result.json in its output folder")
    return failures + [f"{example.name} --small: {said}" for result in results for said in wrong_with(result)]


def asked_for(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-examples", description=(__doc__ or "").partition("\n\n")[0])
    names = [example.name for example in EXAMPLES]
    parser.add_argument("names", nargs="*", metavar="EXAMPLE", help=f"all where none is named: {', '.join(names)}")
    parser.add_argument(
        "--environments", type=Path, default=ROOT / ".venv-examples", help="where the environments are made"
    )
    parser.add_argument("--keep", action="store_true", help="keep the environments for the next time")
    parser.add_argument("--loud", action="store_true", help="show what the programs print")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.names) - set(names)):
        parser.error(f"there is no example {', '.join(unknown)} here: they are {', '.join(names)}")
    return asked


def main() -> None:
    asked = asked_for()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="agl-examples-") as scratch:
        model = tiny.save_tiny(Path(scratch) / "model", context=CONTEXT)
        for example in EXAMPLES:
            if asked.names and example.name not in asked.names:
                continue
            environment, folder = asked.environments / example.name, Path(scratch) / example.name
            folder.mkdir()
            try:
                python = installed(environment, packages(example))
                said = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
                failures += [f"{example.name}: {line}" for line in said.stdout.splitlines() if said.returncode]
                failures += try_out(example, python, model, folder, loud=asked.loud)
            except CannotInstall as error:
                failures.append(f"{example.name} cannot be installed here: {error}")
            finally:
                if not asked.keep:
                    shutil.rmtree(environment, ignore_errors=True)
    print("\n".join(failures) or "no failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
