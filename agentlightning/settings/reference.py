"""The page of all settings, docs/config.md, made from the settings classes and the sentences under their fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from agentlightning.settings.fields import RunConfig, Settings
from agentlightning.settings.sources import Algorithms, allowed, section_of


def reference(algorithms: Algorithms) -> str:
    """All settings as a Markdown page, made from the classes and their docstrings."""
    lines = _INTRODUCTION.splitlines()
    top = {name: info for name, info in RunConfig.model_fields.items() if section_of(info) is None}
    lines += ["", "## The run", "", *_table(top, "")]
    for name, info in RunConfig.model_fields.items():
        if section := section_of(info):
            lines += ["", f"## [{name}]", "", *_purpose(section), *_table(section.model_fields, f"{name}.")]
    for name, algorithm in sorted(algorithms.items()):
        lines += [
            "",
            f'## [algorithm] with name = "{name}"',
            "",
            *_purpose(algorithm),
            *_table(algorithm.model_fields, "algorithm."),
        ]
        for part, info in algorithm.model_fields.items():
            if section := section_of(info):
                prefix = f"algorithm.{part}"
                lines += ["", f"### [{prefix}]", "", *_purpose(section), *_table(section.model_fields, f"{prefix}.")]
    return "\n".join(lines) + "\n"


def _purpose(shape: type[Settings]) -> list[str]:
    own = vars(shape).get("__doc__")
    return [" ".join(str(own).split()), ""] if own else []


def _table(fields: Mapping[str, FieldInfo], prefix: str) -> Iterator[str]:
    yield "| setting | default | allowed | |"
    yield "|---|---|---|---|"
    for name, info in ((name, info) for name, info in fields.items() if section_of(info) is None):
        default: Any = info.get_default(call_default_factory=True, validated_data={})
        shown = "none" if default is None else json.dumps(TypeAdapter(Any).dump_python(default, mode="json"))
        about = " ".join((info.description or "").split()).replace("|", "\\|")
        yield f"| `{prefix}{name}` | `{shown}` | {allowed(info)} | {about} |"


_INTRODUCTION = """\
# Settings

This page is made from the settings classes (`agl config --reference`); a test holds it in step.

A run's settings come from, later over earlier: defaults, what a program passes to `RunConfig(...)`, a TOML file (`agl
train --config run.toml`), environment variables, and flags. `agl config` prints every value and where it came from; a
run writes the same into its folder as `config.json`.

```toml
name = "calculator"
steps = 40

[algorithm]
name = "grpo"
group_size = 8

[learner]
lr = 2e-5
```

The same in the environment: `AGL_LEARNER__LR=2e-5` (two underscores between the parts of a key). As a flag: `--set
learner.lr=2e-5`, any number of times. Text there is read like a TOML value where it is one; `none` stands for no value.
A misspelt key, a value that is not allowed or an `AGL_` variable that names no setting is refused, with the nearest
known keys."""
