"""langgraph: a graph of a model node and a tool node, written out."""

from __future__ import annotations

from typing import Any

from case import SYSTEM, Case, calculator, note, run
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

TOOLS = [tool(calculator), tool(note)]


async def chat(case: Case) -> str:
    model = ChatOpenAI(model=case.model).bind_tools(TOOLS)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(TOOLS))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    agent = graph.compile()
    asked: Any = {"messages": [{"role": "user", "content": case.question}]}
    if not case.stream:
        return (await agent.ainvoke(asked))["messages"][-1].text
    state: Any = None
    async for mode, part in agent.astream(asked, stream_mode=["messages", "values"]):
        if mode == "values":
            state = part
    return state["messages"][-1].text


if __name__ == "__main__":
    run({"chat": chat})
