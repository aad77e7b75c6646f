"""Makes tests/fixtures/wire from recordings of what agent frameworks send to an endpoint: their structure, with no word
of anybody's prompts left.

    python scripts/distil_wire.py FOLDER_OF_RECORDINGS [tests/fixtures/wire]

KeptIds as they were: methods, paths, queries, every key and its order, ids, numbers, booleans and nulls, punctuation,
white space and escapes, tool and schema names, and how a value was serialised inside a string. Replaced: each word of
prose by a plain word of ours, always the same one for the same word, so that texts which were equal, or held one
another, still are and do. Long texts keep their beginning. Recordings that say nothing new are left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

SCENARIOS = ("plain", "badargs", "badtool", "content", "emptycontent", "extra", "parallel", "uni")
"""Of each framework and mode, what the recorded endpoint answered that made clients send something of their own."""

LONGEST = 240
"""Characters of a text that are kept."""

OURS = [
    "amber",
    "anchor",
    "apple",
    "arbor",
    "arrow",
    "autumn",
    "barley",
    "basin",
    "beacon",
    "birch",
    "bloom",
    "boat",
    "branch",
    "brass",
    "bread",
    "bridge",
    "brook",
    "candle",
    "canvas",
    "cedar",
    "chalk",
    "cherry",
    "clay",
    "cliff",
    "cloud",
    "clover",
    "coast",
    "copper",
    "coral",
    "cotton",
    "creek",
    "crystal",
    "dawn",
    "delta",
    "dune",
    "eagle",
    "ember",
    "fern",
    "field",
    "flint",
    "forest",
    "garden",
    "glade",
    "glass",
    "granite",
    "grove",
    "harbor",
    "hazel",
    "heron",
    "hill",
    "honey",
    "island",
    "ivory",
    "jasmine",
    "juniper",
    "kettle",
    "lagoon",
    "lake",
    "lantern",
    "larch",
    "leaf",
    "lemon",
    "lily",
    "linen",
    "lotus",
    "maple",
    "marble",
    "meadow",
    "mint",
    "moss",
    "mountain",
    "oak",
    "ocean",
    "olive",
    "orchard",
    "otter",
    "paper",
    "pearl",
    "pebble",
    "pepper",
    "pine",
    "planet",
    "plum",
    "pond",
    "poppy",
    "prairie",
    "quartz",
    "rain",
    "raven",
    "reed",
    "ridge",
    "river",
    "robin",
    "rose",
    "saddle",
    "saffron",
    "sage",
    "sand",
    "shell",
    "silver",
    "sparrow",
    "spring",
    "spruce",
    "star",
    "stone",
    "stream",
    "summer",
    "sun",
    "thistle",
    "thunder",
    "tide",
    "timber",
    "tulip",
    "valley",
    "velvet",
    "violet",
    "walnut",
    "water",
    "wave",
    "wheat",
    "willow",
    "wind",
    "winter",
    "wood",
    "yarrow",
]

STRUCTURE = frozenset(
    [
        "agent",
        "agents",
        "arguments",
        "array",
        "assistant",
        "auto",
        "b",
        "boolean",
        "calculator",
        "call",
        "calls",
        "class",
        "code",
        "content",
        "data",
        "date",
        "def",
        "description",
        "developer",
        "e",
        "end",
        "enum",
        "error",
        "ERROR",
        "evaluate",
        "expression",
        "false",
        "final_answer",
        "float",
        "format",
        "function",
        "get_weather",
        "handoff",
        "id",
        "import",
        "input",
        "int",
        "integer",
        "items",
        "json",
        "length",
        "max",
        "min",
        "model",
        "n",
        "name",
        "none",
        "null",
        "number",
        "object",
        "output",
        "parameters",
        "prefix",
        "print",
        "property",
        "properties",
        "query",
        "required",
        "reserved",
        "return",
        "role",
        "result",
        "schema",
        "stop",
        "str",
        "strict",
        "string",
        "system",
        "text",
        "thought",
        "thoughts",
        "title",
        "tool",
        "tools",
        "true",
        "type",
        "u",
        "uni",
        "url",
        "user",
        "value",
        "x",
    ]
)
"""Words that carry structure, or that nobody wrote: left as they are."""

PROSE_KEYS = frozenset(
    [
        "content",
        "text",
        "instructions",
        "system",
        "description",
        "title",
        "thinking",
        "reasoning_content",
        "reasoning",
        "summary",
        "output",
        "input",
        "arguments",
        "refusal",
        "message",
        "user",
        "prompt",
        "encrypted_content",
        "data",
        "signature",
        "metadata",
        "error",
        "response",
    ]
)
"""Keys whose strings (at any depth below them) are somebody's words."""


class Words:
    """The replacement of each word, the same throughout."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}

    def __call__(self, found: re.Match[str]) -> str:
        word = found[0]
        if word in STRUCTURE or word.lower() in STRUCTURE:
            return word
        key = word.lower()
        if key not in self._ours:
            number = len(self._ours)
            first, second = divmod(number, len(OURS))
            self._ours[key] = OURS[second] + (OURS[first - 1] if first else "")
        ours = self._ours[key]
        return ours.upper() if word.isupper() and len(word) > 1 else ours.capitalize() if word[0].isupper() else ours


_WORD = re.compile(r"(?<![\\%&#\w])[A-Za-z]{2,}(?![A-Za-z]*[(_=])(?:'[a-z]+)?")
_ID = re.compile(r"^(call|toolu|msg|resp|fc|rs|chatcmpl|req|item|run|task|conv)_?[-\w]*$")


class Distiller:
    def __init__(self) -> None:
        self.words = Words()

    def text(self, text: str) -> str:
        if _ID.match(text):
            return text
        if len(text) > LONGEST:
            text = f"{text[:LONGEST]} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
        return _WORD.sub(self.words, text)

    def value(self, value: Any, key: str = "", prose: bool = False) -> Any:
        if isinstance(value, dict):
            found = {}
            for name, inner in value.items():
                named = name in (
                    "id",
                    "call_id",
                    "tool_call_id",
                    "tool_use_id",
                    "type",
                    "role",
                    "name",
                    "model",
                    "object",
                    "finish_reason",
                    "status",
                    "verbosity",
                )
                # In a schema, `required` lists names that are kept where they are keys.
                kept = (named and isinstance(inner, str) and len(inner) < 80) or (
                    name == "required" and isinstance(inner, list)
                )
                found[name] = inner if kept else self.value(inner, name, prose or name in PROSE_KEYS)
            return found
        if isinstance(value, list):
            return [self.value(inner, key, prose) for inner in value]
        return self.text(value) if isinstance(value, str) and prose else value

    def recording(self, recording: dict[str, Any]) -> dict[str, Any]:
        return {
            "framework": recording["framework"],
            "mode": recording["mode"],
            "scenario": recording["scenario"],
            "version": recording["version"],
            "requests": [
                {
                    "method": one["method"],
                    "path": one["path"],
                    "query": one.get("query", ""),
                    "body": self.value(one["body"]),
                }
                for one in recording["requests"]
            ],
            "replies": [
                {"status": reply["status"], "json": self.value(reply["json"])} for reply in recording["replies"]
            ],
        }


def main(source: Path, target: Path) -> None:
    distiller = Distiller()
    by_framework: dict[str, list[dict[str, Any]]] = defaultdict(list)
    seen: set[str] = set()
    for path in sorted(source.glob("*.json")):
        if path.name == "INDEX.json":
            continue
        recording = json.loads(path.read_text())
        if recording["scenario"] not in SCENARIOS or not recording["requests"]:
            continue
        distilled = distiller.recording(recording)
        what = json.dumps([distilled["framework"], [one["body"] for one in distilled["requests"]]])
        if what not in seen:
            seen.add(what)
            by_framework[distilled["framework"]].append(distilled)
    target.mkdir(parents=True, exist_ok=True)
    for framework, recordings in by_framework.items():
        lines = ",\n".join(json.dumps(one, ensure_ascii=True, separators=(",", ":")) for one in recordings)
        (target / f"{framework}.json").write_text(f"[\n{lines}\n]\n")
    print(f"{sum(map(len, by_framework.values()))} recordings of {len(by_framework)} frameworks in {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "tests/fixtures/wire"))
