"""What agent frameworks really sent, played once more against the gateway: is each request answered in a shape that its
client's own types accept, and does each continuation go on with exactly the recorded tokens?

    python benchmarks/recordings.py [--recordings FOLDER]

Plays the recordings of FOLDER (default: shared/facts/wire beside the repository), or else the distilled ones of
tests/fixtures/wire. The gateway says what the recorded endpoint said, over HTTP, streamed where the client asked for a
stream, with the client's own headers. ``extensions`` are the requests whose history begins with all of an earlier
call's, judged by a plain comparison of the messages; ``stitched`` those whose prompt begins with all of that call's
tokens. Every other request is listed as a branch, with the gateway's reason and what the comparison finds changed. Ends
with status 1 where anything is wrong.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import Report, options_of

sys.path.insert(0, str(Path(__file__).parent.parent))


def read(folder: Path) -> list[dict[str, Any]]:
    """The recordings of a folder, whose files hold one or a list of them."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        found += [each for each in (content if isinstance(content, list) else [content]) if "requests" in each]
    return found


async def play(recordings: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The outcomes by framework."""
    from agentlightning.gateway import Gateway, Served
    from agentlightning.nouns import RunRecord, RunStatus
    from agentlightning.settings.fields import GatewayConfig
    from agentlightning.store import open_store
    from tests.gateway.conftest import House
    from tests.gateway.replay import KeepingEngine, played
    from tests.gateway.scripted import GlassTemplate

    store = open_store(f"sqlite:///{folder / 'record.db'}")
    await store.create_run(RunRecord("run", "run", str(folder), RunStatus.RUNNING, {}, 0.0))
    template = GlassTemplate()
    engine = KeepingEngine(template, context_length=10**7, chunk=64)
    gateway = Gateway(store, {"main": Served("main", engine, template)}, GatewayConfig(orphan_grace=60, drain=10))
    await gateway.start()
    house = House(store, engine, template, gateway)
    try:
        return await played(house, recordings)
    finally:
        await house.close()
        await store.close()


def main() -> None:
    from tests.gateway.recorded import fullest

    parser = options_of(__doc__)
    parser.add_argument(
        "--recordings",
        type=Path,
        help="a folder of recordings; default: the full ones where they are, else the distilled",
    )
    options = parser.parse_args()
    if options.recordings:
        recordings = read(options.recordings)
    else:
        recordings = fullest()
    if not recordings:
        parser.error("no recordings there")
    report = Report("recordings", recordings=len(recordings), distilled="headers" not in recordings[0]["requests"][0])
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = asyncio.run(play(recordings, Path(folder)))
    seconds = time.perf_counter() - begin
    counts = dict.fromkeys(("requests", "answered", "accepted", "left", "repeats", "extensions", "stitched"), 0)
    wrong: list[str] = []
    for framework, outcome in sorted(outcomes.items()):
        mine = {name: getattr(outcome, name) for name in counts}
        counts = {name: counts[name] + mine[name] for name in counts}
        wrong += outcome.wrong
        report.add(
            framework,
            **mine,
            branches=dict(sorted(outcome.branches.items())),
            refused=dict(outcome.refused),
            wrong=len(outcome.wrong),
        )
    for each in wrong:
        print(f"  wrong: {each}")
    report.finish(recordings=len(recordings), **counts, wrong=wrong, seconds=seconds)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
