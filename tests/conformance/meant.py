"""Why a test of somebody else's is meant to fail: a pattern for the test's name and what its failure says, and the
reason. The first that fits holds."""

from __future__ import annotations

_NOT_HERE = "it asks for something by a made-up id, which was never made at this endpoint (404)"
_UNSERVED = "the path is one that this endpoint does not serve, and says so"
_REFUSED = "it sets a field that cannot be honoured, which is refused by name"
_ANNOTATION = "`format` is an annotation in JSON schema: what is no rule there is not kept to"
_DATES = "the library's dates know every leap second and any 29th of February"

MEANT: dict[str, tuple[tuple[str, str], ...]] = {
    "langchain": (),
    "openai": (
        (r"there is no (conversation|response) ", _NOT_HERE),
        (
            r"A stored chat completion is not served|The Embeddings API is not served|chat/completions does not take "
            r"GET",
            _UNSERVED,
        ),
        (r"responses are neither compacted nor made in the background|takes GET, not DELETE", _UNSERVED),
        (r"input must be a string or a list of at least one item", "it sends a request without any input"),
        (r"(presence_penalty|frequency_penalty|max_tool_calls|personality)=.* is not supported", _REFUSED),
    ),
    "anthropic": (
        (r"Batches\.test_(\w+_)?results", "the client's own mock answers it, and never this endpoint"),
        (r"message batches \(messages/batches\) are not served", _UNSERVED),
        (r"(speed|mcp_servers|container|input_examples)=.* is not supported", _REFUSED),
    ),
    "json-schema": (
        (
            r"/(content|idn-email|idn-hostname|iri|iri-reference|json-pointer|regex|relative-json-pointer|uri-reference|uri-template): ",
            _ANNOTATION,
        ),
        (r"/(date|date-time|time): ", _DATES),
        (
            r"/ecmascript-regex: ",
            "patterns are regular expressions of the library, whose white space and escapes are not quite ECMA's",
        ),
        (r"/additionalItems: .*applicators", "the library reads `additionalItems` beside an `allOf` as open"),
        (r"draft7/ref: .*sibling", "what stands beside a `$ref` holds too, as in all drafts since 2019"),
    ),
}
