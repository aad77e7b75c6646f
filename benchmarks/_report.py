"""What every figure is shown and kept with: the machine, the versions, each run, and minimum, median and maximum over
the runs.

    report = Report("imports")
    report.add("import agentlightning", seconds=0.031)      # once per run, under the same label for the same thing
    report.finish()                                          # the table, and benchmarks/results/imports.json

A figure without its machine and its spread is not a figure. Loads no library that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("agentlightning", "torch", "transformers", "aiohttp", "openai", "trl")


def machine() -> dict[str, Any]:
    """The processor, the cores this process may use, memory, load and software, as they are now."""
    info = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    if hasattr(os, "sysconf"):
        info["memory_gb"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    if hasattr(os, "getloadavg"):
        info["load_before"] = round(os.getloadavg()[0], 1)
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return info | {
        "gpus": gpus.splitlines() if gpus else [],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor()
    return platform.processor() or platform.machine()


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def model_folder(named: str | Path | None) -> str:
    """The model a benchmark runs: the one named, or SmolLM2-135M-Instruct, converted once."""
    if named:
        return str(named)
    from agentlightning.settings.starters import make

    return str(make("smollm2", lambda text: print(text, file=sys.stderr)))


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """For a program's options: ``--help`` says what its docstring says, and every default."""
    return argparse.ArgumentParser(description=doc, formatter_class=_Help)


class _Help(argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str:
        said = action.help or ""
        default = " ".join(map(str, action.default)) if isinstance(action.default, list) else action.default
        return (
            said
            if default is None or default is False or default in ("", argparse.SUPPRESS)
            else f"{said} (default: {default})"
        )


class Report:
    """Collects runs, prints each as it comes, and at the end the spread of every number by label."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.name, self.settings, self.machine, self.versions = name, settings, machine(), _versions()
        self.runs: list[dict[str, Any]] = []
        m = self.machine
        print(
            f"{name}: {m['cpu']}, {m['cores']} cores, {m.get('memory_gb', '?')} GB, load {m.get('load_before', '?')}, "
            f"Python {m['python']}"
        )
        print("  " + ", ".join(f"{package} {number}" for package, number in self.versions.items()))

    def add(self, label: str, **values: Any) -> None:
        """One run of what ``label`` names. Numbers are summarised; anything else is kept beside them."""
        self.runs.append({"label": label, **values})
        print(f"  {label}: " + ", ".join(f"{key} {_show(value)}" for key, value in values.items()), flush=True)

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """By label and number: ``min``, ``median``, ``max`` and how many ``runs``."""
        spread: dict[str, dict[str, dict[str, float]]] = {}
        for label in dict.fromkeys(run["label"] for run in self.runs):
            mine = [run for run in self.runs if run["label"] == label]
            for key in mine[0]:
                values = [
                    run[key]
                    for run in mine
                    if isinstance(run.get(key), int | float) and not isinstance(run.get(key), bool)
                ]
                if values:
                    figures = {
                        "min": min(values),
                        "median": statistics.median(values),
                        "max": max(values),
                        "runs": len(values),
                    }
                    spread.setdefault(label, {})[key] = figures
        return spread

    def finish(self, **conclusions: Any) -> Path:
        """Prints the spread and the conclusions and writes all of it to ``benchmarks/results/NAME.json``."""
        spread = self.summary()
        for label, figures in spread.items():
            for key, f in figures.items():
                print(
                    f"  {label}, {key}: median {_show(f['median'])} (min {_show(f['min'])}, max {_show(f['max'])}, "
                    f"{f['runs']} runs)"
                )
        for key, value in conclusions.items():
            print(f"  {key}: {_show(value)}")
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        revision = _output("git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty")
        content = {
            "benchmark": self.name, "date": time.strftime("%Y-%m-%d"), "revision": revision, "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings, "runs": self.runs, "summary": spread, "conclusions": conclusions,
        }  # fmt: skip
        path.write_text(json.dumps(content, indent=2) + "\n")
        print(f"  written to {path.relative_to(RESULTS.parent.parent)}")
        return path


def _show(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
