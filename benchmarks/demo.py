"""The demo's figure: greedy reward on 200 held-out problems after training, and the training time it took, over seeds.

    python benchmarks/demo.py [--model DIR] [--seeds 0 1 2 3 4]

Each seed is ``examples/calculator/train.py`` as ``make demo`` runs it, in a process of its own. ``training_s`` is
sampling and training; validation, saving, loading and starting are in ``whole_s`` besides. The run stops at the first
step whose mean training reward is 0.95.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import Report, options_of

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "calculator" / "train.py"


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--model", help="Hugging Face folder; default: SmolLM2-135M-Instruct")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="one run of the demo each")
    options = parser.parse_args()
    report = Report("demo", seeds=options.seeds, held_out=200)
    scores: list[float] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(PROGRAM), "--seed", str(seed), "--output-dir", folder]
            began = time.monotonic()
            subprocess.run(
                [*command, *(("--model", options.model) if options.model else ())],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            whole = time.monotonic() - began
            result = json.loads(next(Path(folder).glob("*/result.json")).read_text())
        history, seconds = result["history"], result["seconds"]
        scores.append(result["validation_after"]["mean"])
        report.add(
            "demo",
            before=result["validation_before"]["mean"],
            after=scores[-1],
            steps=len(history),
            training_s=sum(seconds.get(phase, 0.0) for phase in ("sampling", "training")),
            saving_s=seconds.get("saving", 0.0),
            validating_s=seconds["validating"],
            whole_s=whole,
            parity_max=max((line["parity_max"] for line in history if line["parity_max"] is not None), default=None),
            tokens_per_s=max(line["tokens_per_s"] for line in history),
            seed=str(seed),
            rewards=str([round(line["reward"], 3) for line in history]),
        )
    report.finish(seeds_at_least_0_95=f"{sum(score >= 0.95 for score in scores)} of {len(scores)}")


if __name__ == "__main__":
    main()
