"""How light the core is: the time of ``import agentlightning`` over a bare interpreter, and the installed size of the
core.

    python benchmarks/imports.py [--runs 15] [--no-size]

Each time is a new process, alternating with a bare one. The size is measured in a new environment that holds the core
install alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from _report import Report, options_of

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "bare python": "pass",
    "import agentlightning": "import agentlightning",
    "agent side": "from agentlightning import rollout, emit_reward",
    "Trainer": "from agentlightning import Trainer, GRPO",
    "torch, to compare": "import torch",
}


def seconds(program: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    return time.perf_counter() - began


def core_size() -> dict[str, float]:
    """Megabytes of what ``pip install agentlightning`` puts on disk, over an empty environment, and the number of
    packages."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        before = _size(Path(folder))
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", str(ROOT)],
            check=True,
        )
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format", "freeze"], check=True, capture_output=True, text=True
        ).stdout
        return {
            "megabytes": (_size(Path(folder)) - before) / 1e6,
            "packages": len([x for x in listed.split() if not x.startswith("pip==")]),
        }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--runs", type=int, default=15, help="new processes of each kind")
    parser.add_argument("--no-size", action="store_true", help="leave out the installation")
    options = parser.parse_args()
    report = Report("imports", runs=options.runs)
    for _ in range(options.runs):
        for label, program in PROGRAMS.items():
            report.add(label, seconds=seconds(program))
    if not options.no_size:
        report.add("core install", **core_size())
    figures = report.summary()
    extra = figures["import agentlightning"]["seconds"]["median"] - figures["bare python"]["seconds"]["median"]
    report.finish(import_seconds=extra)


if __name__ == "__main__":
    main()
