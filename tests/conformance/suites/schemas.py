"""JSON-Schema-Test-Suite on the grammars that replies are kept to: a schema is refused, or nothing that it forbids is
allowed.

python -m tests.conformance.suites.schemas FOLDER     # the suite's own `tests`; prints a line of JSON for each schema
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path
from typing import Any

from agentlightning.engines.grammar import Grammars, replay
from agentlightning.errors import GrammarError
from agentlightning.templates import load_template
from agentlightning.templates.grammar.reply import reply_grammar
from tests.tiny import MERGES, tiny_tokenizer

DRAFTS = ("draft7", "draft2019-09", "draft2020-12")


def allows(grammars: Grammars, template: Any, grammar: str, value: Any) -> bool:
    """Whether a reply may be this value, in any of the spacings that a grammar writes."""
    for separators in ((",", ":"), (", ", ": ")):
        ids = array(
            "i",
            [
                *template.encode(json.dumps(value, ensure_ascii=False, separators=separators), start=False),
                template.stop_token_ids[0],
            ],
        )
        try:
            replay(grammars.matcher(grammar, template.stop_token_ids), array("i"), ids)
        except GrammarError:
            continue
        return True
    return False


def main() -> None:
    template, grammars = load_template(tiny_tokenizer(MERGES)), Grammars(tiny_tokenizer(MERGES), 400)
    for draft in DRAFTS:
        for file in sorted((Path(sys.argv[1]) / draft).rglob("*.json")):
            for group in json.loads(file.read_text()):
                told = {"name": f"{draft}/{file.stem}: {group['description']}", "outcome": "kept", "why": ""}
                try:
                    schema = group["schema"]
                    if not isinstance(schema, dict):
                        continue  # no API takes `true` for a schema
                    grammar = reply_grammar(template, (), required=False, parallel=True, output=schema)
                    grammars.check(grammar)
                    wrong = [
                        case["description"]
                        for case in group["tests"]
                        if not case["valid"] and allows(grammars, template, grammar, case["data"])
                    ]
                    if wrong:
                        told |= {"outcome": "wrong", "why": f"allows what it forbids: {wrong[0]}"}
                except GrammarError as error:
                    told |= {"outcome": "refused", "why": str(error)}
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
