"""The trace tree: what continues what, and why not."""

from __future__ import annotations

import json
import time
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.engines.base import Sample
from agentlightning.errors import TemplateError
from agentlightning.gateway.equality import canonical_arguments, equality_key
from agentlightning.gateway.tree import Placement, TraceTree
from agentlightning.nouns import FinishReason, Message, Node, Segment, Tool, ToolCall
from agentlightning.views import tree as show_tree
from tests.gateway.scripted import GlassTemplate

TOOLS = (Tool("calculator", "calculates", {"type": "object"}),)


class Talk:
    """Drives a tree as a session does, without HTTP: ``ask`` plans, samples ``says``, records and returns what the
    client would get."""

    def __init__(self, template: GlassTemplate | None = None) -> None:
        self.tree = TraceTree()
        self.template = template or GlassTemplate()
        self.nodes: list[Node] = []
        self.placement: Placement
        self.calls = 0

    def ask(self, messages: list[Message], *says: str, tools: tuple[Tool, ...] = (), policy: str = "main") -> Message:
        self.placement = self.tree.place(messages, tools, policy, self.template)
        samples = []
        for text in says or ("ok",):
            ids = array("i", [*self.template.encode(text, start=False), 2])
            sample = Sample((Segment(ids, array("f", [-0.1] * len(ids)), 1),), FinishReason.STOP)
            samples.append((sample, self.template.read(ids, tools, FinishReason.STOP).message))
        nodes, leaves = self.tree.grow(self.placement, samples, self.calls)
        self.calls += 1
        self.nodes += nodes
        self.tree.publish(self.placement, leaves)
        self.sampled = [list(sample.segments[0].token_ids) for sample, _ in samples]
        return samples[0][1]

    @property
    def branch(self) -> str:
        return self.placement.branch

    def text(self) -> str:
        return self.template.decode(self.placement.prompt_ids)


def user(text: str) -> Message:
    return Message("user", text)


def calls(arguments: str, *, name: str = "calculator", content: str = "") -> str:
    return f'{content}<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_turn_two_begins_with_turn_ones_prompt_and_sampled_ids() -> None:
    talk = Talk()
    history = [Message("system", "Be brief."), user("hi")]
    reply = talk.ask(history, "hello")
    assert talk.branch == "root"
    before = [*talk.placement.prompt_ids, *talk.sampled[0]]
    talk.ask([*history, reply, user("more")], "sure")
    assert talk.branch == "continued"
    assert talk.placement.prompt_ids.tolist()[: len(before)] == before
    assert talk.text().endswith("hello<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")


def test_only_what_is_new_is_tokenised_and_stored() -> None:
    talk = Talk()
    history = [user("x" * 500)]
    distinct = 0
    for turn in range(20):
        encoded = talk.template.encoded
        reply = talk.ask(history, f"answer {turn}")
        assert talk.template.encoded - encoded < (600 if turn == 0 else 100)
        history += [reply, user(f"question {turn}")]
    talk.ask(history, "end")
    stored = sum(len(node.token_ids) for node in talk.nodes)
    distinct = len(talk.placement.prompt_ids) + len(talk.sampled[0])
    assert stored == distinct
    assert [node.parent for node in talk.nodes] == [None, *range(len(talk.nodes) - 1)]


DAMAGE = {
    "re-serialised arguments": lambda m: replace(m, tool_calls=tuple(replace(c,
    arguments=json.dumps(json.loads(c.arguments))) for c in m.tool_calls)),
    "compact, escaped, sorted": lambda m: replace(
        m, tool_calls=tuple(replace(c, arguments=json.dumps(json.loads(c.arguments), sort_keys=True, separators=(",",
        ":"))) for c in m.tool_calls)
    ),
    "trimmed": lambda m: replace(m, content=m.content.strip()),
    "padded": lambda m: replace(m, content=f"  {m.content}\n"),
    "reasoning dropped": lambda m: replace(m, reasoning=None),
    "name added": lambda m: replace(m, name="math_agent"),
    "ids replaced": lambda m: replace(m, tool_calls=tuple(replace(c, id=f"other{i}") for i,
    c in enumerate(m.tool_calls))),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("shows_ids", [False, True])
def test_what_a_client_does_to_a_turn_does_not_change_its_tokens(damage: str, shows_ids: bool) -> None:
    talk = Talk(GlassTemplate(shows_ids=shows_ids))
    history = [user("What is 17 * 23? ")]
    reply = talk.ask(
        history, "<think>so</think> I compute.\n" + calls('{ "z":1.0, "expression":"17 * 23 é" }'), tools=TOOLS
    )
    before = [*talk.placement.prompt_ids, *talk.sampled[0]]
    copy = DAMAGE[damage](reply)
    result = Message("tool", "391", tool_call_id=copy.tool_calls[0].id)
    talk.ask([user("What is 17 * 23?"), copy, result], "It is 391.", tools=TOOLS)
    assert talk.branch == "continued"
    assert talk.placement.prompt_ids.tolist()[: len(before)] == before
    assert talk.text().endswith("391<|im_end|>\n<|im_start|>assistant\n")
    if shows_ids:
        assert f"[{reply.tool_calls[0].id}]391" in talk.text(), "a new tool result answers the recorded call's id"


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: replace(m, content="I compute something else."),
        lambda m: replace(m, tool_calls=(replace(m.tool_calls[0], arguments='{"expression": "17 * 24"}'),)),
        lambda m: replace(m, tool_calls=(replace(m.tool_calls[0], name="search"),)),
        lambda m: replace(m, tool_calls=()),
        lambda m: replace(m, reasoning="I thought of something else"),
    ],
)
def test_an_edited_turn_is_a_branch_and_never_a_splice(edit) -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "<think>so</think>I compute." + calls('{"expression": "17 * 23"}'), tools=TOOLS)
    edited = edit(reply)
    talk.ask([user("q"), edited, user("go on")], tools=TOOLS)
    assert talk.branch == "edited"
    assert talk.placement.parent is None
    assert edited.content in talk.text()
    for call in edited.tool_calls:
        assert call.arguments in talk.text()


@pytest.mark.parametrize(
    "split",
    [
        lambda m: [replace(m, tool_calls=()), replace(m, content="", reasoning=None)],
        lambda m: [replace(m, content="", reasoning=None), replace(m, tool_calls=())],
        lambda m: [
            replace(m, tool_calls=(), reasoning=None),
            *(Message("assistant", "", (call,)) for call in m.tool_calls),
        ],
        lambda m: [
            replace(m, tool_calls=m.tool_calls[:1]),
            Message("tool", "1", tool_call_id=m.tool_calls[0].id),
            Message("assistant", "", m.tool_calls[1:]),
        ],
    ],
    ids=["text, calls", "calls, text", "text, call, call", "call, result, call"],
)
def test_a_turn_that_comes_back_in_parts_is_still_the_turn(split) -> None:
    talk = Talk()
    history = [user("q")]
    for turn in range(3):
        reply = talk.ask(
            history, "<think>so</think>I do." + calls('{ "z":1 }') + calls(f'{{"z": {turn}}}'), tools=TOOLS
        )
        assert talk.branch == ("continued" if turn else "root")
        before = [*talk.placement.prompt_ids, *talk.sampled[0]]
        history += split(reply)
        shown = {message.tool_call_id for message in history}
        history += [Message("tool", "1", tool_call_id=call.id) for call in reply.tool_calls if call.id not in shown]
    talk.ask(history, tools=TOOLS)
    assert talk.branch == "continued"
    assert talk.placement.prompt_ids.tolist()[: len(before)] == before


@pytest.mark.parametrize("says", [["10"], ["1", "0", "10"]], ids=["ten was sampled", "all three were"])
@pytest.mark.parametrize("names", [("alice", "bob"), (None, None)])
def test_two_speakers_are_never_read_as_one(says: list[str], names: tuple[str | None, str | None]) -> None:
    talk = Talk()
    talk.ask([user("vote")], *says)
    talk.ask(
        [
            user("vote"),
            *(Message("assistant", vote, name=name) for vote, name in zip("10", names, strict=True)),
            user("who won?"),
        ]
    )
    assert talk.placement.parent is None or talk.placement.parent.message.content == "1"
    assert "10" not in talk.text()


@pytest.mark.parametrize("first", [0, 1])
def test_results_of_parallel_calls_come_back_in_any_order(first: int) -> None:
    """New ones and those of earlier turns; the model sees them in the order of its calls."""
    talk = Talk()
    reply = talk.ask([user("q")], calls('{"z": 1}') + calls('{"z": 2}'), tools=TOOLS)
    results = [Message("tool", f"result {i}", tool_call_id=call.id) for i, call in enumerate(reply.tool_calls)]
    order = results if first else results[::-1]
    done = talk.ask([user("q"), reply, *order], "done", tools=TOOLS)
    assert talk.branch == "continued"
    assert talk.text().index("result 0") < talk.text().index("result 1")
    before = [*talk.placement.prompt_ids, *talk.sampled[0]]
    talk.ask([user("q"), reply, *order[::-1], done, user("r")], tools=TOOLS)
    assert talk.branch == "continued"
    assert talk.placement.prompt_ids.tolist()[: len(before)] == before
    swapped = [
        replace(results[0], tool_call_id=results[1].tool_call_id),
        replace(results[1], tool_call_id=results[0].tool_call_id),
    ]
    talk.ask([user("q"), reply, *swapped, done, user("r")], tools=TOOLS)
    assert talk.branch == "edited", "each result says it is the other call's"


@pytest.mark.parametrize("anew", [False, True], ids=["the same each time", "others each time"])
def test_ids_that_a_client_renames_do_not_matter_to_a_template_that_shows_them(anew: bool) -> None:
    talk = Talk(GlassTemplate(shows_ids=True))
    history, before = [user("q")], list[int]()
    for turn in range(4):
        names: dict[str, str] = {}

        def renamed(message: Message, turn: int = turn, names: dict[str, str] = names) -> Message:
            for call in message.tool_calls:
                names[call.id] = f"call_{len(names)}" + (f"_{turn}" if anew else "")
            calls = tuple(replace(call, id=names[call.id]) for call in message.tool_calls)
            return replace(message, tool_calls=calls, tool_call_id=names.get(message.tool_call_id or ""))

        reply = talk.ask(
            [renamed(message) for message in history],
            calls('{"z": 1}') + calls('{"z": 2}') if turn < 2 else "done",
            tools=TOOLS,
        )
        assert talk.branch == ("continued" if turn else "root")
        assert talk.placement.prompt_ids.tolist()[: len(before)] == before
        before = [*talk.placement.prompt_ids, *talk.sampled[0]]
        history += [reply, *(Message("tool", "1", tool_call_id=call.id) for call in reply.tool_calls)]
        history += [] if reply.tool_calls else [user("more")]


def test_a_result_whose_id_is_none_of_the_calls_stays_in_its_place() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], calls('{"z": 1}') + calls('{"z": 2}'), tools=TOOLS)
    one, two = (Message("tool", f"result {i}", tool_call_id=call.id) for i, call in enumerate(reply.tool_calls))
    for results in ([replace(one, tool_call_id="odd"), two], [one, replace(two, tool_call_id="odd")]):
        talk.ask([user("q"), reply, *results], tools=TOOLS)
        assert talk.text().index("result 0") < talk.text().index("result 1")
    first, second = (Message("assistant", "", (replace(call, arguments='{"z": 3}'),)) for call in reply.tool_calls)
    talk.ask([user("other"), first, second, one, two], tools=TOOLS)
    assert talk.text().index("result 0") < talk.text().index("result 1"), (
        "the calls of a turn in parts that was not sampled here"
    )


def test_text_behind_a_result_is_not_read_in_front_of_it() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "hello" + calls('{"z": 1}'), tools=TOOLS)
    result = Message("tool", "r", tool_call_id=reply.tool_calls[0].id)
    talk.ask([user("q"), replace(reply, content=""), result, replace(reply, tool_calls=()), user("on")], tools=TOOLS)
    assert talk.branch == "edited"
    assert talk.text().index("<|im_start|>tool") < talk.text().index("hello")


def test_calls_that_an_agent_made_one_by_one_are_no_parallel_turn() -> None:
    """Where their ids are the agent's own; with those of the sample they are its calls (`in_parts`)."""
    talk = Talk()
    reply = talk.ask([user("q")], calls('{"z": 1}') + calls('{"z": 2}'), tools=TOOLS)
    rounds: list[Message] = []
    for i, call in enumerate(reply.tool_calls):
        rounds += [
            Message("assistant", "", (replace(call, id=f"own{i}"),)),
            Message("tool", f"r{i}", tool_call_id=f"own{i}"),
        ]
    talk.ask([user("q"), *rounds], tools=TOOLS)
    assert talk.branch == "edited"
    assert talk.placement.parent is None


def test_the_sample_that_a_client_names_is_the_one_that_goes_on() -> None:
    talk = Talk()
    leaves = []
    for _ in range(2):
        reply = talk.ask([user("q")], "same")
        leaves.append(talk.tree._samples[hash((hash((0, equality_key(user("q")))), equality_key(reply)))][-1])
    for leaf in (leaves[0], leaves[1], leaves[0]):
        placement = talk.tree.place([user("q"), reply, user("r")], (), "main", talk.template, leaf)
        assert placement.parent is leaf


def test_a_long_turn_that_comes_back_behind_another_question_is_an_edit() -> None:
    talk = Talk()
    reply = talk.ask(
        [user("It is noon. What is it about?")], "an answer that no other conversation has by chance, it is that long"
    )
    talk.ask([user("It is one. What is it about?"), reply, user("sure?")])
    assert talk.branch == "edited"


def test_reasoning_of_a_given_turn_that_changes_is_a_branch() -> None:
    talk = Talk()

    def history(thought: str | None) -> list[Message]:
        return [user("p"), Message("assistant", "prior", reasoning=thought), user("q")]

    reply = talk.ask(history("one"))
    for thought, branch in (("two", "edited"), (None, "continued"), ("one", "forked"), (" one\n", "forked")):
        talk.ask([*history(thought), reply, user("x")])
        assert (talk.branch, "one" in talk.text()) == (branch, thought != "two")


def test_reasoning_that_is_edited_twice_branches_twice() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "<think>old</think>ans")
    edit = [user("q"), replace(reply, reasoning="first edit"), user("x")]
    again = talk.ask(edit)
    assert talk.branch == "edited"
    talk.ask([edit[0], replace(reply, reasoning="second edit"), edit[2], again, user("y")])
    assert talk.branch == "edited"
    assert "second edit" in talk.text()
    assert "first edit" not in talk.text()


def test_a_stop_string_that_the_client_puts_back_is_what_was_sampled() -> None:
    talk = Talk()
    placement = talk.tree.place([user("q")], (), "main", talk.template)
    ids = talk.template.encode("x = 1\n</code>", start=False)
    sample = Sample((Segment(ids, array("f", [-0.1] * len(ids)), 1),), FinishReason.STOP, "</code>")
    cut = talk.template.read(ids, (), FinishReason.STOP, "</code>").message
    assert cut.content == "x = 1\n"
    _, leaves = talk.tree.grow(placement, [(sample, cut)], 0)
    talk.tree.publish(placement, leaves)
    whole = replace(cut, content=cut.content + "</code>")
    said = [*placement.prompt_ids, *ids]
    reply = talk.ask([user("q"), whole, user("go")])
    assert talk.branch == "continued"
    assert talk.placement.prompt_ids.tolist()[: len(said)] == said
    for back, branch in ((whole, "continued"), (cut, "forked")):
        talk.ask([user("q"), back, user("go"), reply, user("on")])
        assert talk.branch == branch, "either way of writing it is the same turn from then on"
    talk.ask([user("q"), replace(cut, content=cut.content + "</cod>"), user("go")])
    assert talk.branch == "edited"


def test_tools_whose_schemas_are_written_in_another_order_are_the_same_tools() -> None:
    def listed(**schema: Any) -> tuple[Tool, ...]:
        return (Tool("f", "", {"type": "object", "properties": schema}),)

    talk = Talk()
    tools = listed(a={"default": 1, "type": "integer"}, b={})
    reply = talk.ask([user("q")], "r", tools=tools)
    before = [*talk.placement.prompt_ids, *talk.sampled[0]]
    reply = talk.ask([user("q"), reply, user("s")], "t", tools=listed(b={}, a={"type": "integer", "default": 1}))
    assert talk.branch == "continued"
    assert talk.placement.prompt_ids.tolist()[: len(before)] == before
    history = [user("q"), Message("assistant", "r"), user("s"), reply, user("u")]
    talk.ask(history, tools=listed(a={"default": True, "type": "integer"}, b={}))
    assert talk.branch == "tools_changed"
    talk.ask(history, tools=tools)
    assert talk.branch == "continued"


def test_an_example_that_happens_to_say_what_was_sampled_elsewhere_is_no_edit() -> None:
    talk = Talk()
    talk.ask([user("is it?")], "yes")
    talk.ask([user("does 1 equal 1?"), Message("assistant", "yes"), user("does 1 equal 2?")])
    assert talk.branch == "new"
    talk.ask([Message("system", "Now it is noon."), user("is it?"), Message("assistant", "yes"), user("sure?")])
    assert talk.branch == "edited"


def test_any_number_of_turns_in_a_row_is_read_in_no_time() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "one" + calls('{"z": 1}'), tools=TOOLS)
    begin = time.thread_time()
    talk.ask([user("q"), *[replace(reply, tool_calls=())] * 10_000, user("r")], tools=TOOLS)
    assert talk.branch == "edited"
    assert time.thread_time() - begin < 5


def test_parts_that_make_no_recorded_turn_stay_as_they_are() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "one" + calls('{"z": 1}'), tools=TOOLS)
    for parts in (
        [replace(reply, tool_calls=()), replace(reply, content="two")],
        [replace(reply, tool_calls=()), reply],
        [replace(reply, tool_calls=()), replace(reply, content="", reasoning="another thought")],
    ):
        sent = [user("q"), *parts, user("r")]
        talk.ask(sent, tools=TOOLS)
        assert talk.branch in ("edited", "forked") and talk.placement.parent is None
        assert talk.text().count("<|im_start|>assistant") == 3
    one, two = Message("assistant", "one"), Message("assistant", "two")
    first = talk.ask([user("p")], "one")
    talk.ask([user("p"), first], "two")
    talk.ask([user("p"), one, two, user("r")])
    assert talk.branch == "continued", "two turns in a row are two turns"
    assert talk.placement.parent is not None and talk.placement.parent.position == 2


def test_arguments_that_are_no_json_match_only_as_they_are() -> None:
    talk = Talk()
    broken = '{ "expression":"17 * 23"'
    reply = talk.ask(
        [user("q")], f'<tool_call>{{"name": "calculator", "arguments": {broken}}}</tool_call>', tools=TOOLS
    )
    assert reply.tool_calls[0].arguments == broken
    result = Message("tool", "error", tool_call_id=reply.tool_calls[0].id)
    talk.ask([user("q"), reply, result], tools=TOOLS)
    assert talk.branch == "continued"
    for repaired in ("{}", '{"expression": "17 * 23"}', json.dumps({"INVALID_JSON": broken})):
        talk.ask(
            [user("q"), replace(reply, tool_calls=(replace(reply.tool_calls[0], arguments=repaired),)), result],
            tools=TOOLS,
        )
        assert talk.branch == "edited"


def test_another_tool_list_is_a_branch_with_that_reason() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "a", tools=TOOLS)
    talk.ask([user("q"), reply, user("r")], tools=())
    assert talk.branch == "tools_changed"
    again = (Tool("calculator", "calculates", {"type": "object"}),)
    talk.ask([user("q"), reply, user("r")], tools=again)
    assert talk.branch == "continued", "equal tools are the same tools"


def test_identical_prompts_share_their_node() -> None:
    talk = Talk()
    for i in range(5):
        talk.ask([user("same")], f"answer {i}")
        assert talk.branch == ("root" if i == 0 else "forked")
    assert [node.sampled for node in talk.nodes] == [False, True, True, True, True, True]
    assert {node.parent for node in talk.nodes[1:]} == {0}


def test_best_of_n_has_one_prompt_and_the_chosen_sample_goes_on() -> None:
    talk = Talk()
    talk.ask([user("q")], "first", "second", "third")
    assert [(node.parent, node.sampled) for node in talk.nodes] == [(None, False), (0, True), (0, True), (0, True)]
    talk.ask([user("q"), Message("assistant", "second"), user("why")])
    assert talk.branch == "continued"
    assert talk.nodes[-2].parent == 2


def test_an_earlier_turn_replayed_forks_where_it_was() -> None:
    talk = Talk()
    first = talk.ask([user("q")], "a")
    second = talk.ask([user("q"), first, user("r")], "b")
    talk.ask([user("q"), first, user("r"), second, user("s")], "c")
    talk.ask([user("q"), first, user("other")], "d")
    assert talk.branch == "forked"
    assert talk.nodes[-2].parent == talk.nodes[1].id
    talk.ask([user("q"), first, user("r")], "e")
    assert talk.branch == "forked"
    assert talk.nodes[-1].parent == talk.nodes[2].id, "the very same prompt: no node but the sample"


def test_another_conversation_is_new() -> None:
    talk = Talk()
    reply = talk.ask([Message("system", "You are A."), user("q")], "a")
    talk.ask([Message("system", "You are B."), user("q")], "b")
    assert talk.branch == "new"
    talk.ask([Message("system", "You are B."), user("do it"), reply, user("go")], "c", tools=TOOLS)
    assert talk.branch == "new", "a handoff: the other agent's turn is a given text under other tools"


def test_a_changed_history_around_a_known_turn_is_edited() -> None:
    talk = Talk()
    reply = talk.ask([Message("system", "It is 10:00."), user("q")], "a", tools=TOOLS)
    talk.ask([Message("system", "It is 10:01."), user("q"), reply, user("r")], "b", tools=TOOLS)
    assert talk.branch == "edited"


SYSTEM = Message("system", "Be brief.")
SUMMARY = (user("So far: two questions, two answers."), Message("assistant", "Understood."))


def four_turns(talk: Talk) -> list[Message]:
    history = [SYSTEM]
    for turn in range(4):
        history.append(user(f"question {turn}"))
        history.append(talk.ask(history, f"answer {turn}", tools=TOOLS))
    return history


@pytest.mark.parametrize(
    "shorten",
    [
        lambda history: [SYSTEM, *history[5:]],
        lambda history: history[5:],
        lambda history: history[6:],
        lambda history: [SYSTEM, *SUMMARY, *history[7:]],
        lambda history: [SYSTEM, Message("system", "So far: two questions."), *history[5:]],
        lambda history: [*history[:3], *history[7:]],
        lambda history: [*history[:3], SUMMARY[0], *history[7:]],
    ],
    ids=["window under the system prompt", "window", "window that begins with a sample", "summary",
    "summary in a system message", "a gap", "a gap summed up"],
)  # fmt: skip
def test_a_history_that_lost_its_earlier_turns_is_compacted(shorten) -> None:
    talk = Talk()
    short = [*shorten(four_turns(talk)), user("and now?")]
    reply = talk.ask(short, "now", tools=TOOLS)
    assert talk.branch == "compacted"
    assert (talk.placement.parent is not None) == (short[1].content == "question 0"), (
        "the part of the path before the gap is kept"
    )
    assert readable(talk.text(), talk.template) == readable(
        talk.template.render(short, TOOLS, {}).texts[0], talk.template
    )
    talk.ask([*short, reply, user("so?")], tools=TOOLS)
    assert talk.branch == "continued", "what was compacted is a path like any other"
    again = [SYSTEM, user("Sum of all sums."), short[-1], reply, user("so?")]
    talk.ask(again, tools=TOOLS)
    assert talk.branch == "compacted"


@pytest.mark.parametrize(
    "change",
    [
        lambda history: [Message("system", "It is 10:01."), *history[1:]],
        lambda history: [Message("system", "You are another agent."), *history[5:]],
        lambda history: [SYSTEM, *SUMMARY, *history[3:]],
        lambda history: [SYSTEM, user("one more"), *history[1:]],
        lambda history: [SYSTEM, *history[5:8], replace(history[8], content="answer 3!")],
        lambda history: [*history[:4], replace(history[4], content="answer 1!"), *history[5:]],
        lambda history: [*history[:7], user("question 3, put otherwise"), history[8]],
    ],
    ids=["a clock", "another agent with a part of the turns", "as much as there was", "more than there was",
    "its last turn edited", "one turn edited", "a question edited"],
)  # fmt: skip
def test_a_change_that_is_no_compaction_stays_an_edit(change) -> None:
    talk = Talk()
    talk.ask([*change(four_turns(talk)), user("and now?")], "now", tools=TOOLS)
    assert talk.branch == "edited"


def test_messages_that_are_put_together_are_no_compaction() -> None:
    """No turn is gone."""
    talk = Talk()
    history = [SYSTEM, user("a"), user("b")]
    one = talk.ask(history, "c", tools=TOOLS)
    two = talk.ask([*history, one, user("d")], "e", tools=TOOLS)
    talk.ask([SYSTEM, user("a\n\nb"), one, user("d"), two, user("f")], tools=TOOLS)
    assert talk.branch == "edited"


def test_a_compacted_history_under_other_tools_or_another_policy_is_another_conversation() -> None:
    talk = Talk()
    short = [SYSTEM, *four_turns(talk)[5:], user("and now?")]
    talk.ask(short)
    assert talk.branch == "new"
    talk.ask(short, tools=TOOLS, policy="other")
    assert talk.branch == "new"


def test_samples_with_equal_texts_are_told_apart_by_their_ids() -> None:
    talk = Talk()
    one = talk.ask([user("q")], calls('{"a": 1}'), tools=TOOLS)
    two = talk.ask([user("q")], calls('{"a": 1}'), tools=TOOLS)
    assert equality_key(one) == equality_key(two)
    for reply, leaf in ((one, 1), (two, 2), (one, 1)):
        talk.ask([user("q"), reply, Message("tool", "r", tool_call_id=reply.tool_calls[0].id)], "done", tools=TOOLS)
        assert talk.placement.parent is not None
        assert talk.placement.parent.node.id == leaf


def test_a_template_that_drops_earlier_reasoning_makes_a_branch_with_that_reason() -> None:
    talk = Talk(GlassTemplate(drops_reasoning=True))
    reply = talk.ask([user("q")], "<think>hm</think>a")
    talk.ask([user("q"), reply, user("r")], "b")
    assert talk.branch == "template"
    assert "hm" not in talk.text()


def test_what_came_before_the_dropped_reasoning_is_kept() -> None:
    talk = Talk(GlassTemplate(drops_reasoning=True))
    history = [user("q")]
    for say in ("plain", "<think>hm</think>thought"):
        history += [talk.ask(history, say), user("more")]
    talk.ask(history)
    assert talk.branch == "template"
    assert talk.placement.parent is not None
    assert talk.placement.parent.position == 1
    assert "hm" not in talk.text()


def test_a_template_that_rewrites_its_beginning_is_never_spliced() -> None:
    talk = Talk(GlassTemplate(counts=True))
    reply = talk.ask([user("q")], "a")
    talk.ask([user("q"), reply, user("r")], "b")
    assert talk.branch == "template"
    assert talk.text().startswith("[3]\n")


def test_a_sample_cut_by_length_gets_its_end_of_turn_from_the_glue() -> None:
    talk = Talk()
    placement = talk.tree.place([user("q")], (), "main", talk.template)
    ids = talk.template.encode("cut off in the mid", start=False)
    sample = Sample((Segment(ids, array("f", [0.0] * len(ids)), 1),), FinishReason.LENGTH)
    message = talk.template.read(ids, (), FinishReason.LENGTH).message
    _, leaves = talk.tree.grow(placement, [(sample, message)], 0)
    talk.tree.publish(placement, leaves)
    talk.ask([user("q"), message, user("go on")])
    assert talk.branch == "continued"
    assert "in the mid<|im_end|>\n<|im_start|>user\ngo on" in talk.text()


def test_a_sample_that_spans_versions_is_a_chain_of_nodes() -> None:
    talk = Talk()
    placement = talk.tree.place([user("q")], (), "main", talk.template)
    ids = array("i", [*talk.template.encode("abcdef", start=False), 2])
    parts = (Segment(ids[:3], array("f", [-1.0] * 3), 4), Segment(ids[3:], array("f", [-2.0] * 4), 5))
    message = talk.template.read(ids, (), FinishReason.STOP).message
    nodes, leaves = talk.tree.grow(placement, [(Sample(parts, FinishReason.STOP), message)], 0)
    assert [(node.parent, node.version) for node in nodes] == [(None, None), (0, 4), (1, 5)]
    talk.tree.publish(placement, leaves)
    talk.ask([user("q"), message, user("r")])
    assert talk.branch == "continued"
    assert "abcdef<|im_end|>" in talk.text()


def test_a_withdrawn_plan_leaves_no_trace() -> None:
    talk = Talk()
    talk.tree.withdraw(talk.tree.place([user("q")], (), "main", talk.template))
    talk.ask([user("q")])
    assert talk.branch == "root"
    assert [node.id for node in talk.nodes] == [0, 1]
    both = [talk.tree.place([user("p")], (), "main", talk.template) for _ in range(2)]
    talk.tree.withdraw(both[0])
    talk.ask([user("p")])
    assert talk.branch == "forked", "the other one still holds the prompt"
    reply = talk.ask([user("r")])
    talk.tree.withdraw(talk.tree.place([user("r"), reply, user("s")], (), "main", talk.template))
    talk.ask([user("r"), reply, user("t")])
    assert talk.branch == "continued"


def test_policies_do_not_continue_each_other() -> None:
    talk = Talk()
    reply = talk.ask([user("q")], "a", policy="main")
    talk.ask([user("q"), reply, user("r")], "b", policy="other")
    assert talk.placement.parent is None


def test_a_template_that_renders_nothing_is_refused() -> None:
    class Empty(GlassTemplate):
        def render(self, messages, tools, sampled):
            return replace(super().render(messages, tools, sampled), texts=("",))

    with pytest.raises(TemplateError, match="nothing"):
        TraceTree().place([user("q")], (), "main", Empty())


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ('{"a": 1, "b": [1, 2]}', '{ "b":[1,2],"a":1.0 }', True),
        ('{"a": "é"}', '{"a": "\\u00e9"}', True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": 12345678901234567890123}', '{"a": 12345678901234567890124}', False),
        ('{"a": 12345678901234567890123}', '{"a":12345678901234567890123}', True),
        ('{"a": 0.12345678901234567890}', '{"a": 0.12345678901234568}', True),
        ('{"a": 1', '{"a": 1 ', True),
        ('{"a": 1', '{"a": 1}', False),
        ('{"a": NaN}', '{"a": NaN}', True),
        ("[" * 3000, "[" * 3000, True),
        ("", "{}", False),
    ],
)
def test_arguments_are_equal_where_their_json_values_are(a: str, b: str, equal: bool) -> None:
    assert (canonical_arguments(a) == canonical_arguments(b)) is equal


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_way_to_write_the_same_arguments_is_the_same(value: object) -> None:
    written = [
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, separators=(",", ":")),
        json.dumps(value, sort_keys=True, indent=2),
    ]
    assert len({canonical_arguments(text) for text in written}) == 1


TEXT = st.text(alphabet='ab <>\n{}"é', max_size=6)


@st.composite
def damaged(draw: st.DrawFn, message: Message) -> Message:
    kind = draw(
        st.sampled_from(["same", "same", "trim", "pad", "edit", "drop calls", "edit arguments", "ids", "no reasoning"])
    )
    match kind:
        case "trim":
            return replace(message, content=message.content.strip())
        case "pad":
            return replace(message, content=message.content + "\n ")
        case "edit":
            return replace(message, content=message.content + "!")
        case "drop calls":
            return replace(message, tool_calls=())
        case "edit arguments":
            return replace(message, tool_calls=tuple(replace(c, arguments='{"a": 7}') for c in message.tool_calls))
        case "ids":
            return replace(message, tool_calls=tuple(replace(c, id="x" + c.id) for c in message.tool_calls))
        case "no reasoning":
            return replace(message, reasoning=None)
    return message


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([{}, {"drops_reasoning": True}, {"shows_ids": True}]))
def test_a_spliced_path_says_what_the_client_sent(data: st.DataObject, options: dict[str, bool]) -> None:
    """Random conversations under random damage: whatever the tree splices, the prompt reads as the client's own history
    does (and no history that is whole is ever cut off from its earlier)."""
    talk = Talk(GlassTemplate(**options))
    plain = GlassTemplate(**options)
    history: list[Message] = [user(data.draw(TEXT))]
    for _ in range(data.draw(st.integers(1, 5))):
        say = data.draw(TEXT.filter(lambda text: "<" not in text))
        if data.draw(st.booleans()):
            say += calls(json.dumps({"a": data.draw(st.integers(0, 3))}))
        if data.draw(st.booleans()):
            say = "<think>hm</think>" + say
        sent = list(history)
        reply = talk.ask(sent, say, tools=TOOLS)
        wanted = plain.render(sent, TOOLS, {}).texts[0]
        assert readable(talk.text(), plain) == readable(wanted, plain)
        history = [data.draw(damaged(message)) if message.role == "assistant" else message for message in history]
        history.append(data.draw(damaged(reply)))
        history.append(user(data.draw(TEXT)))


def readable(text: str, template: GlassTemplate) -> list[object]:
    """A prompt as a list of turns: role, stripped text, calls by name and value. Reasoning and ids are left out."""
    turns: list[object] = []
    for part in text.split("<|im_start|>")[1:]:
        role, _, body = part.partition("\n")
        ids = template.encode(body.split("<|im_end|>")[0], start=False)
        message = template.read(ids, TOOLS, FinishReason.STOP).message
        calls_ = [(call.name, canonical_arguments(call.arguments)) for call in message.tool_calls]
        content = message.content
        for call in message.tool_calls if template.shows_ids else ():
            content = content.replace(call.id, "")
        turns.append(
            (
                role,
                content.split("call_")[0].replace("x", "").strip() if template.shows_ids else content.strip(),
                calls_,
            )
        )
    return turns


def test_calls_ids_are_no_part_of_equality() -> None:
    a = Message("assistant", "x ", (ToolCall("1", "f", "{}"),), reasoning="r")
    assert equality_key(a) == equality_key(Message("assistant", "x", (ToolCall("2", "f", "{ }"),), name="n"))


def test_every_reason_of_a_branch_is_explained_where_it_is_shown() -> None:
    reasons = {"forked", "new", "edited", "compacted", "tools_changed", "kwargs_changed", "template"}
    assert set(show_tree.BRANCHES) == reasons
    docs = Path(__file__).parents[2] / "docs"
    table = {
        line.split("`")[1]
        for line in (docs / "gateway.md").read_text().splitlines()
        if line.startswith("| `") and line.count("|") == 3
    }
    assert reasons | {"root", "continued"} <= table
    assert all(f"`{reason}`" in (docs / "cli.md").read_text() for reason in reasons)
