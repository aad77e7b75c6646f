"""Plain: the few methods by which programs copy and write out the values that they are handed, as if those were
pydantic models. They are dataclasses, so that an agent's process loads nothing for them."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self, cast


class Plain:
    """Of a dataclass."""

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Self:
        """One with these values."""
        return cls(**values)

    def model_dump(self) -> dict[str, Any]:
        """Its fields, as a dict of copies."""
        return dataclasses.asdict(cast(Any, self))

    def model_dump_json(self) -> str:
        """Its fields as JSON. Raises TypeError for a value that is none."""
        return json.dumps(self.model_dump())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields replaced."""
        made = copy.deepcopy(self) if deep else copy.copy(self)
        known = {each.name for each in dataclasses.fields(cast(Any, self))}
        for name, value in (update or {}).items():
            if name not in known:
                raise AttributeError(f"{type(self).__name__} has no field {name!r}: it has {', '.join(sorted(known))}")
            setattr(made, name, value)
        return made
