"""What a change costs: two checkouts side by side, in the same call, each measured by its own benchmarks' code.

    python benchmarks/before_after.py --before CHECKOUT [--after CHECKOUT] [--rounds 5] [--model DIR] [--only WHAT ...]
    [--new FOLDER ...]

Of each checkout: tokens a second of 8 requests that decode together (engine.py), tokens a second that a training step
forwards (learner.py, one group of 8 rollouts), calls a second at 32 connections and the latency of a call at one
(gateway.py), the time of the imports, and training steps a second of the letters model (tests/tiny.py), loading and
closing included. A process of each side starts and warms up; then they take turns, and who begins changes from round to
round. Ratios are after over before, of the medians.

Statements are counted by room without docstrings, those of the folders that ``--new`` names apart: capabilities that
were not there before. Both checkouts run in the environment that this program runs in.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _report import Report, model_folder, options_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "agentlightning"
PAUSE = 0.4
"""Seconds between turns: threads of the side that has just worked still spin for a moment."""

TURNS = """
import json, sys
def turns(measure):
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)
"""
"""The beginning of every side's program: one line of figures for each line that it is sent."""

ENGINE = """
import asyncio, engine
async def main(model):
    loaded = engine.load_model(engine.ModelConfig(path=model, dtype="float32"))
    local = engine.LocalEngine(loaded.model, loaded.tokenizer, engine.EngineConfig(slots=32))
    await local.start()
    prompts = engine.prompts_of(8, loaded.model.config.vocab_size, seed=8)
    await engine.run_engine(local, prompts, 4)
    print("ready", flush=True)
    for _ in sys.stdin:
        figures = await engine.run_engine(local, prompts, 48)
        print(json.dumps({f"{kind}_tokens_per_s": value for kind, value in figures.items()}), flush=True)
    await local.close()
asyncio.run(main(sys.argv[1]))
"""

LEARNER = """
import learner
model = learner.load(sys.argv[1], None)
batch = learner.with_logprobs(model, learner.grpo_batch(1, model.config.vocab_size))
trained = learner.learner(model, layout="tree")
trained.step(batch)
def measure():
    stats = trained.step(batch)
    return {"forward_tokens_per_s": stats.forward_tokens / stats.seconds}
turns(measure)
"""

GATEWAY = """
import tempfile, gateway
async def main(model, folder):
    server = gateway.Server(
        "--serve", "gateway", "--model", model, "--folder", folder, "--attempts", "32", program=gateway.__file__
    )
    talkers = [gateway.Talker(url, server.told["first"], server.told["new"]) for url in server.told["urls"]]
    for talker in talkers:
        await talker.connect()
        await talker.prepare()
    await gateway.load(talkers, 0.5)
    print("ready", flush=True)
    for _ in sys.stdin:
        one, many = await gateway.load(talkers[:1], 1.0), await gateway.load(talkers, 2.0)
        print(json.dumps({"p50_ms": one["p50_ms"], "calls_per_s": many["rps"]}), flush=True)
    server.close()
with tempfile.TemporaryDirectory() as folder:
    gateway.run(lambda: main(sys.argv[1], folder))
"""

IMPORTS = """
import subprocess
def seconds(line):
    timed = f"import time; t = time.perf_counter(); {line}; print(time.perf_counter() - t)"
    return min(float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)
               for _ in range(5))
seconds("import agentlightning")
turns(lambda: {
    "agentlightning_ms": 1e3 * seconds("import agentlightning"),
    "agent_side_ms": 1e3 * seconds("from agentlightning import rollout, emit_reward"),
    "trainer_ms": 1e3 * seconds("from agentlightning import Trainer, GRPO"),
})
"""

STEPS = """
import tempfile, time
from pathlib import Path
from agentlightning import GRPO, Trainer
from tests.tiny import letter_tasks, save_letters
agent = str(Path(sys.argv[2]) / "tests" / "e2e" / "letters_agent.py") + ":agent"
def fit(folder, steps):
    trainer = Trainer(
        algorithm=GRPO(group_size=4, tasks_per_step=8), model=model, output_dir=folder, steps=steps, progress=False,
        learner={"lr": 5e-3}, sampling={"max_tokens": 2}, n_runners=8, threads=1, runner={"isolation": "thread"},
    )
    return trainer.fit(agent, letter_tasks(8))
def measure():
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        result = fit(folder, 8)
        assert len(result.history) == 8
        return {"steps_per_s": 8 / (time.perf_counter() - began)}
with tempfile.TemporaryDirectory() as kept:
    model = save_letters(Path(kept) / "letters")
    fit(kept, 2)
    turns(measure)
"""

PROGRAMS = {"engine": ENGINE, "learner": LEARNER, "gateway": GATEWAY, "imports": IMPORTS, "steps": STEPS}


@contextmanager
def side(checkout: Path, program: str, model: str) -> Iterator[subprocess.Popen[str]]:
    """A process with one checkout's code, warmed up, that measures once for each line it is sent."""
    there = f"import sys, {PACKAGE}; assert {PACKAGE}.__file__.startswith({str(checkout)!r}), {PACKAGE}.__file__\n"
    process = subprocess.Popen(
        [sys.executable, "-c", there + TURNS + program, model, str(checkout)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'benchmarks'}", "TQDM_DISABLE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while (line := told(process, checkout)) != "ready":
            print(f"    {line}", file=sys.stderr)
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)


def told(process: subprocess.Popen[str], checkout: Path) -> str:
    """Its next line. Raises SystemExit where it has ended instead."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{checkout}: the measuring process has ended with {process.wait(60)}")
    return line.strip()


def turn(process: subprocess.Popen[str], checkout: Path) -> dict[str, float]:
    """One measurement of a side."""
    assert process.stdin is not None
    time.sleep(PAUSE)
    process.stdin.write("go\n")
    process.stdin.flush()
    while not (line := told(process, checkout)).startswith("{"):
        print(f"    {line}", file=sys.stderr)
    return json.loads(line)


def measure(report: Report, what: str, checkouts: dict[str, Path], model: str, rounds: int) -> None:
    """One kind of figure of both sides, who take turns."""
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(side(checkout, PROGRAMS[what], model)) for name, checkout in checkouts.items()
        }
        for number in range(rounds):
            for name in sorted(checkouts, reverse=number % 2 == 0):
                report.add(f"{what}, {name}", **turn(processes[name], checkouts[name]))


# --------------------------------------------------------------------------- statements


def statements(path: Path) -> int:
    """Of one file, docstrings left out."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)]
    return sum(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
        for node in nodes
    )


def by_room(checkout: Path, new: list[str]) -> Counter[str]:
    """Statements of each folder of the package, of all modules that lie loose in it as one, and of each new folder."""
    counted: Counter[str] = Counter()
    for path in sorted((checkout / PACKAGE).rglob("*.py")):
        inside = path.relative_to(checkout / PACKAGE)
        apart = next((folder for folder in new if inside.is_relative_to(folder)), None)
        counted[apart or (inside.parts[0] if len(inside.parts) > 1 else "loose modules")] += statements(path)
    return counted


def count(checkouts: dict[str, Path], new: list[str]) -> dict[str, Any]:
    """Prints the table of both sides, and returns it with the totals."""
    before, after = (by_room(checkouts[name], new) for name in ("before", "after"))
    print(f"  {'statements':24} {'before':>8} {'after':>8}")
    for room in sorted({*before, *after} - {*new}) + [room for room in new if room in after]:
        print(f"  {room + (' (new)' if room in new else ''):24} {before[room]:8,} {after[room]:8,}")
    totals = {
        "before": sum(before.values()),
        "after": sum(number for room, number in after.items() if room not in new),
        "new": sum(after[room] for room in new),
    }
    print(f"  {'all, without the new':24} {totals['before']:8,} {totals['after']:8,}")
    return {"before": dict(before), "after": dict(after), "totals": totals}


# --------------------------------------------------------------------------- the whole


def revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no git"


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--after", type=Path, default=ROOT, help="the other one; default: this one")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--model", help="Hugging Face folder; default: SmolLM2-135M-Instruct")
    parser.add_argument(
        "--only", nargs="+", choices=[*PROGRAMS, "statements"], help="what is measured; default: everything"
    )
    parser.add_argument(
        "--new", nargs="+", default=["policies", "learning/objectives"], help="folders whose statements are new"
    )
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "after": options.after.resolve()}
    wanted = options.only or [*PROGRAMS, "statements"]
    model = model_folder(options.model)
    revisions = {name: revision(checkout) for name, checkout in checkouts.items()}
    report = Report("before_after", revisions=revisions, rounds=options.rounds, model=Path(model).name)
    print("  " + ", ".join(f"{name} {number}" for name, number in revisions.items()))
    report.settings["statements"] = count(checkouts, options.new) if "statements" in wanted else None
    for what in PROGRAMS:
        if what in wanted:
            measure(report, what, checkouts, model, options.rounds)
    spread = report.summary()
    ratios = {
        f"{what}, {key}: after / before": figures["median"] / spread[f"{what}, before"][key]["median"]
        for what in PROGRAMS
        for key, figures in spread.get(f"{what}, after", {}).items()
    }
    report.finish(**ratios)


if __name__ == "__main__":
    main()
