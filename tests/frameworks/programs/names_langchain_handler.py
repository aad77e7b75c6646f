"""langgraph with the handler that programs ask a tracer for, over a client that does not stand on httpx."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph

from agentlightning.tracing.langchain import get_langchain_handler

CALLS = ["check_query", "write_query"]


class Plain(BaseChatModel):
    """A chat model of the program's own."""

    endpoint: str

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": messages[-1].text}]}).encode()
        asked = urllib.request.Request(f"{self.endpoint}/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked) as reply:
            said = json.loads(reply.read())
        message = AIMessage(said["choices"][0]["message"]["content"], response_metadata={"id": said["id"]})
        return ChatResult(generations=[ChatGeneration(message=message)])


def agent(task: Any, llm: Any) -> float:
    model = Plain(endpoint=llm.endpoint)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("write_query", ask)
    graph.add_node("check_query", ask)
    graph.add_edge(START, "write_query")
    graph.add_edge("write_query", "check_query")
    graph.compile().invoke({"messages": [("user", "q")]}, config={"callbacks": [get_langchain_handler()]})
    return 1.0
