"""How exactly turns go on: random conversations under random client damage over three templates, judged independently
of the code that splices.

    python benchmarks/continuation.py [--conversations 1000] [--turns 8] [--seed 0]

``wrong`` counts spliced prompts that do not read as the client's own history; it has to be 0. The rest is the share of
requests that continued a recorded path and of those that branched, by what the client did and by reason.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

from _report import Report, options_of

sys.path.insert(0, str(Path(__file__).parent.parent))

TALKS = {"hermes_tags": True, "llama3": True, "smol": False}
"""Templates, and whether the conversation has tools."""


def main() -> None:
    from tests.gateway.damage import DAMAGE, Talk

    parser = options_of(__doc__)
    parser.add_argument("--conversations", type=int, default=1000, help="how many")
    parser.add_argument("--turns", type=int, default=8, help="of a conversation")
    parser.add_argument("--seed", type=int, default=0, help="of conversations and damage")
    options = parser.parse_args()
    report = Report("continuation", **vars(options), templates=list(TALKS))
    wrong = requests = 0
    for family, tools in TALKS.items():
        by_damage: dict[str, Counter[str]] = {name: Counter() for name in DAMAGE}
        begin = time.perf_counter()
        for number in range(options.conversations // len(TALKS) + 1):
            talk = Talk(family, random.Random(f"{options.seed} {family} {number}"), tools)
            for turn in talk.play(options.turns, list(DAMAGE))[1:]:
                by_damage[turn.damage][turn.branch] += 1
                requests += 1
                wrong += turn.wrong is not None
                if turn.wrong is not None:
                    print(f"{family} {number}: {turn.damage}: {turn.wrong}")
        for name, branches in by_damage.items():
            count = branches.total()
            report.add(
                f"{family}, {name}",
                requests=count,
                **{branch: round(number / count, 4) for branch, number in sorted(branches.items())},
            )
        report.add(
            f"{family}, all",
            seconds=time.perf_counter() - begin,
            requests=sum(branches.total() for branches in by_damage.values()),
        )
    report.finish(requests=requests, wrong_splices=wrong)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
