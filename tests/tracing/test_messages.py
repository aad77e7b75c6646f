"""Messages in the form of the conventions, and back as Chat Completions writes them."""

from __future__ import annotations

from agentlightning.nouns import Message, ToolCall
from agentlightning.tracing.messages import chat_message, message_json


def test_messages_have_the_parts_of_the_conventions() -> None:
    said = Message("assistant", "hm", (ToolCall("t1", "add", '{"a": 1}'),), reasoning="so")
    assert message_json(said) == {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "so"},
            {"type": "text", "content": "hm"},
            {"type": "tool_call", "id": "t1", "name": "add", "arguments": '{"a": 1}'},
        ],
    }
    answer = Message("tool", "2", tool_call_id="t1")
    assert message_json(answer)["parts"] == [{"type": "tool_call_response", "id": "t1", "response": "2"}]


def test_a_message_is_written_as_chat_completions_has_it() -> None:
    said = Message("assistant", "", (ToolCall("t1", "add", '{"a": 1}'),), reasoning="so")
    assert chat_message(message_json(said)) == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "so",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    }
    answer = Message("tool", "2", tool_call_id="t1")
    assert chat_message(message_json(answer)) == {"role": "tool", "content": "2", "tool_call_id": "t1"}
    assert chat_message(message_json(Message("user", "", name="Ann"))) == {"role": "user", "content": "", "name": "Ann"}
