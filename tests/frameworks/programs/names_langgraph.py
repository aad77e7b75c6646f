"""langgraph: nodes that ask a chat model, one after the other and at once; nothing is passed on."""

from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

CALLS = ["check_query", "other_query", "rewrite_query", "write_query", "write_query"]


def graph(llm: Any, streaming: bool) -> Any:
    model = ChatOpenAI(model="m", base_url=llm.endpoint, api_key="k", streaming=streaming, max_retries=0)

    def write_query(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def check_query(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def other_query(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.with_config(tags=["x"]).ainvoke("q")]}

    def rewrite_query(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke("rewrite")]}

    built = StateGraph(MessagesState)
    for node in (write_query, check_query, other_query, rewrite_query):
        built.add_node(node.__name__, node)
    built.add_edge(START, "write_query")
    built.add_edge("write_query", "check_query")
    built.add_edge("write_query", "other_query")
    built.add_edge("check_query", "rewrite_query")
    return built.compile()


async def agent(task: Any, llm: Any) -> float:
    await graph(llm, streaming=False).ainvoke({"messages": [("user", "q")]})
    alone = ChatOpenAI(model="m", base_url=llm.endpoint, api_key="k", streaming=True, max_retries=0)

    def write_query(state: MessagesState) -> dict[str, Any]:
        return {"messages": [alone.invoke(state["messages"])]}

    single = StateGraph(MessagesState)
    single.add_node("write_query", write_query)
    single.add_edge(START, "write_query")
    for _ in single.compile().stream({"messages": [("user", "q")]}, stream_mode="messages"):
        pass
    return 1.0
