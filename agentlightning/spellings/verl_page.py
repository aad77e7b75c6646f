"""The page of verl's keys, made from their table: ``python -m agentlightning.spellings.verl_page > docs/verl.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from agentlightning.spellings.verl import ACCEPTED, HONOURED, REFUSED, Honoured, Json

_INTRODUCTION = """\
# verl's settings

The tables of this page are made from `agentlightning/spellings/verl.py`; a test holds them in step.

```python
from agentlightning import VERL, Trainer

Trainer(algorithm=VERL(config)).fit(agent, train_dataset, val_dataset)
```

`config` is a nested dict, or dotted keys, in the names of verl 0.2 to 0.9. `VERL` is settings, and no algorithm of its
own: each value is laid below what `Trainer` is passed, a file and `AGL_` variables, and `config.json` of a run says
which key each came from. What a config does not say is what verl means by not saying it, where the table has a default;
`VERL()` is GRPO with the defaults of this package. With both, a call that has a reward of its own, as a returned
`Triplet` may, is worth that, and every other one its rollout's (`algorithm.credit.scheme` is `mixed`).

    python -m agentlightning.verl agent.py:agent data.train_files=train.parquet +trainer.total_epochs=2 ...

reads the same table from words as Hydra has them. Each key is one of three:

- **honoured**: it sets something here;
- **accepted**: it changes nothing about the result here, and one line says which were when a run begins;
- **refused**: it would change the result and has no part behind it. Values that mean *off* pass.

An unknown key, a value of a wrong kind, and keys that contradict each other are one line each, with the whole path.

Three things are not as in verl, whatever a config says: the ratio has no second clip for negative advantages (verl's
`clip_ratio_c` is 3), a batch that the last tasks of a pass do not fill is filled from the next one, and a run always
keeps the weights it ends with."""


def page() -> str:
    """The page, as Markdown."""
    lines = [_INTRODUCTION, "", "## Honoured", "", *_honoured(), "", "## Accepted", ""]
    for accepted in ACCEPTED:
        names = sorted(name for keys in accepted.keys.values() for name in keys.split())
        lines += [f"**{accepted.what[0].upper()}{accepted.what[1:]}**: {accepted.why}.", "", _listed(names), ""]
    lines += ["## Refused", "", *_refused()]
    return "\n".join(lines) + "\n"


def _honoured() -> Iterator[str]:
    yield "| key | takes | sets | |"
    yield "|---|---|---|---|"
    for entry in HONOURED:
        ours = entry.ours if entry.ours.startswith("(") else " ".join(f"`{name}`" for name in entry.ours.split())
        yield _row(f"`{entry.key}`", entry.takes.words, ours.strip("()"), " ".join(filter(None, _said(entry))))


def _said(entry: Honoured) -> Iterator[str]:
    yield entry.how
    if entry.default is not None:
        yield f"Not said: {_value(entry.default)}."


def _refused() -> Iterator[str]:
    yield "| key | passes | today |"
    yield "|---|---|---|"
    for entry in REFUSED:
        passes = ", ".join(_value(value) for value in entry.off) or "nothing but null"
        unless = f", or anything where `{entry.unless}` is 0" if entry.unless else ""
        yield _row(f"`{entry.key}`", passes + unless, entry.today)


def _value(value: Json) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())
