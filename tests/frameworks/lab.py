"""Installs every published version of Agent Framework's lab package beside this one, unmodified, runs it, and writes
docs/agent-framework.md. (agent-framework-lab 0.0.1a0 holds no module at all: this package answers beside it.)

make test-lab                               all of them
make test-lab ARGS="1.0.0b261022 none"      some
make test-lab ARGS=--page                   run nothing: write the page anew from the results
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlightning import __version__
from tests.frameworks.__main__ import House, converse, settled
from tests.frameworks.cases import CASES
from tests.frameworks.catalog import Framework, Setup
from tests.frameworks.environment import CannotInstall, installed
from tests.frameworks.page import cells

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "lab.json"
PAGE = ROOT / "docs" / "agent-framework.md"
LAB, CORE, OURS = "agent-framework-lab", "agent-framework-core", "agentlightning"
NEWEST = "1.23.0"


@dataclass(frozen=True, slots=True)
class Pair:
    """A version of the lab (or none) and one of the framework's core. ``beside``: what else has to be installed."""

    lab: str | None
    core: str
    wire: str = "responses"
    beside: tuple[str, ...] = ("agent-framework-openai",)

    @property
    def name(self) -> str:
        return f"{self.lab or 'none'} on {self.core}"


OLD = ("1.0.0b251016", "chat completions", ("mcp<2",))
NEW = (NEWEST, "responses", ("agent-framework-openai", "mcp>=2.2"))
PAIRS = (
    Pair("1.0.0b251024", *OLD),
    Pair("1.0.0b251024", *NEW),
    Pair("1.0.0b260709", "1.11.0"),
    Pair("1.0.0b260709", *NEW),
    Pair("1.0.0b260910", "1.13.0"),
    Pair("1.0.0b260910", *NEW),
    Pair("1.0.0b261022", "1.13.0"),
    Pair("1.0.0b261022", *NEW),
    Pair("0.0.1a0", *NEW),
    Pair(None, *OLD),
    Pair(None, *NEW),
)

LOOK = """
import hashlib, base64, importlib.metadata as metadata, importlib.util as util, json
def held(name):
    try:
        return {str(file): file for file in metadata.files(name) or []}
    except metadata.PackageNotFoundError:
        return {}
ours, labs = held("agentlightning"), held("agent-framework-lab")
def whole(file):
    digest = hashlib.new(file.hash.mode, file.locate().read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == file.hash.value
changed = [name for name, file in {**ours, **labs}.items() if file.hash and not whole(file)]
spec = util.find_spec("agent_framework_lab_lightning")
print(json.dumps({
    "both": sorted(ours.keys() & labs.keys()), "changed": changed,
    "answers": "this package" if "aside" in spec.origin else "the lab",
    "requires": metadata.requires("agent-framework-lab") or [] if labs else [],
}))
"""
"""Run in an environment: which files are of both packages, or not what was installed, and whose module answers."""

TWICE = """
from agent_framework.lab.lightning import AgentFrameworkTracer, init
from agent_framework_lab_lightning import AgentFrameworkTracer as again, rollout
assert again is AgentFrameworkTracer
"""
"""The lab's other name for its module, imported first."""

SERVER = """
import asyncio
from agent_framework import MCPStdioTool
from agentlightning.agent.loading import describe
async def start():
    async with MCPStdioTool(name="calculator", command="no-such-server"):
        pass
try:
    asyncio.run(start())
except Exception as error:
    print(describe(error))
"""
"""An MCP server that does not start: what a failed attempt's line says of it."""

HEAD = """\
# Microsoft Agent Framework

An agent of [Agent Framework](frameworks.md) needs no line of this package: its client reads the endpoint from the environment, or from `llm.endpoint` and `llm.model`. [examples/agent_framework_math](../examples/agent_framework_math)
is a whole program.

Programs that were written for its lab package, `agent-framework-lab`, run as they are:

- `from agent_framework.lab.lightning import AgentFrameworkTracer` is the lab's own class, over the `AgentOpsTracer` of this package. `Trainer(tracer=AgentFrameworkTracer())` turns the framework's telemetry on where agents run.
- `from agent_framework_lab_lightning import init` is here with every version of the lab, none of which has it: `init()` turns the framework's telemetry on (`enable_instrumentation()`, or `OBSERVABILITY_SETTINGS.enable_otel` in
  versions before 1.0.0b251223). All public names of this package can be imported from that module too.
- Without the lab, `agent_framework_lab_lightning` is a module of this package with the same names. It lies aside, at the end of Python's path, so that installing the lab beside it writes over nothing, and uninstalling the lab
  brings it back. `agent_framework.lab.lightning` is the lab's alone.
- An MCP server that does not start fails its attempt as `agent_error`, with the cause in its line: a program that was not found, a connection that was closed. What the server printed is in
  the attempt's output.
- `OpenAIChatClient` means Chat Completions in 2025 and Responses in 2026: the same program speaks another API after an upgrade, and the endpoint knows both.

`pip install agent-framework-lab` beside this package, without the extra `[lightning]` where the last column says no: pip would put another package of this name in its place.

`make test-lab` installs each published version, unmodified, in an environment of its own, and has {cases} conversations against the gateway with its tracer around them; this table is what it found with this package's {version}.

- **module**: whose `agent_framework_lab_lightning` answers.
- **files**: whether both packages' files are what was installed, before and after the lab was uninstalled again.
- **conversations**: in how many the tools were run with just what was sampled, the agent ended with the model's last words, the record is one path of exact tokens, and the tracer had a span for every call.
- **`[lightning]`**: whether the lab's extra accepts this package's version.

| lab | core | API | module | imports | files | conversations | `[lightning]` |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def look(python: str) -> dict[str, Any]:
    return json.loads(_output([python, "-c", LOOK]))


def _output(command: list[str]) -> str:
    # From the root of the file system: nothing of a checkout is on the path.
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, cwd="/").stdout


def accepts(requires: list[str]) -> bool | None:
    """Whether the lab's extra takes this package as it is; None where it has no such extra."""
    from packaging.requirements import Requirement

    wanted = [each for each in map(Requirement, requires) if each.name == OURS]
    return all(each.specifier.contains(__version__) for each in wanted) if wanted else None


def run(pair: Pair, wheel: Path, folder: Path, house: House, *, loud: bool) -> tuple[dict[str, Any], list[str]]:
    """A pair's row, and what is wrong with it."""
    core = f"{CORE}=={pair.core}"
    # The lab last, as someone installs it who has this package.
    python = installed(folder, [str(wheel), core, *pair.beside])
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if pair.lab is not None:
        _output([*pip, "install", f"{LAB}=={pair.lab}", core])
    failures: list[str] = []
    found = look(python)
    files = [f"{name} is of both packages" for name in found["both"]] + found["changed"]
    imports = "whole"
    try:
        if found["answers"] == "the lab":
            _output([python, "-c", TWICE])
    except subprocess.CalledProcessError as error:
        imports = error.stderr.strip().splitlines()[-1]
        failures.append(imports)
    if any(package.startswith("mcp") for package in pair.beside):
        said = _output([python, "-c", SERVER]).strip()
        if "[Errno 2] No such file or directory: 'no-such-server'" not in said or "\n" in said:
            failures.append(f"an MCP server that does not start is told so: {said}")
    setup = Setup("lab", pair.wire, "", streams=(False,))
    framework = Framework(pair.name, (core,), "use_agent_framework_lab.py", (setup,))
    program = ROOT / "tests" / "frameworks" / "programs" / framework.program
    verdicts = converse(framework, setup, [python, str(program)], house, loud=loud)
    failures += settled(setup, verdicts)
    if pair.lab is not None:
        _output([*pip, "uninstall", "-y", LAB])
        after = look(python)
        files += [f"{name}, after the lab was uninstalled" for name in after["changed"]]
        if after["answers"] != "this package":
            failures.append("this package does not answer once the lab is uninstalled")
    row = {
        "answers": found["answers"],
        "imports": imports,
        "files": files,
        "exact": sum(verdict.outcome == "exact" for verdict in verdicts.values()),
        "conversations": sum(not case.broken for case in CASES),
        "accepts": accepts(found["requires"]),
    }
    return row, [f"{pair.name}: {line}" for line in [*files, *failures]]


def page(results: dict[str, Any]) -> str:
    rows = [row(pair, results["rows"][pair.name]) for pair in PAIRS if pair.name in results["rows"]]
    return HEAD.format(cases=len(CASES), version=results["version"]) + "".join(rows)


def row(pair: Pair, found: dict[str, Any]) -> str:
    if "absent" in found:
        return cells(pair.lab or "none", pair.core, pair.wire, found["absent"], "", "", "", "")
    taken = {True: "yes", False: "no", None: ""}[found["accepts"]]
    exact = f"{found['exact']} of {found['conversations']} exact"
    files = "; ".join(found["files"]) or "whole"
    return cells(pair.lab or "none", pair.core, pair.wire, found["answers"], found["imports"], files, exact, taken)


def asked_for(arguments: list[str] | None = None) -> argparse.Namespace:
    versions = list(dict.fromkeys(pair.lab or "none" for pair in PAIRS))
    parser = argparse.ArgumentParser(prog="make test-lab", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of the lab; all of {', '.join(versions)}")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page anew from the results")
    parser.add_argument("--loud", action="store_true", help="show what the programs write to standard error")
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.versions) - set(versions)):
        parser.error(f"there is no version {', '.join(unknown)} here: they are {', '.join(versions)}")
    return asked


def main() -> None:
    asked = asked_for()
    failures: list[str] = []
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"rows": {}}
    if asked.page:
        PAGE.write_text(page(results))
        return
    with tempfile.TemporaryDirectory(prefix="agl-lab-") as scratch, House() as house:
        built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", scratch, str(ROOT)]
        subprocess.run(built, check=True, timeout=300)
        wheel = next(Path(scratch).glob("*.whl"))
        for pair in PAIRS:
            if asked.versions and (pair.lab or "none") not in asked.versions:
                continue
            folder = Path(scratch) / "environment"
            try:
                found, wrong = run(pair, wheel, folder, house, loud=asked.loud)
            except CannotInstall as error:
                found, wrong = {"absent": f"cannot be installed here: {error}"}, [f"{pair.name}: {error}"]
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            failures += wrong
            print(row(pair, found), end="", flush=True)
            results = {"version": __version__, "rows": {**results["rows"], pair.name: found}}
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
            PAGE.write_text(page(results))
    print("\n".join(failures) or "no failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
