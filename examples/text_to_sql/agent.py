"""A text-to-SQL agent as a LangGraph program: it writes a query, runs it, checks what came, and rewrites it.

`write_query`, `check_query` and `rewrite_query` call the model. Those that write are trained, the one that checks is
not.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

from execution import QueryError, rows_of, same_result
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from agentlightning import LitAgent

TURNS = 2
"""Queries that are written for one question, at most."""

WRITE = [
    ("system", "Write one SQLite query that answers the question, and nothing else."),
    ("user", "Tables:\ndog(id, name, owner, weight)\nQuestion: What are the names of dogs with the owner Kim?"),
    ("assistant", "SELECT name FROM dog WHERE owner = 'Kim';"),
    ("user", "Tables:\nship(id, name, port, crew)\nQuestion: How many ships have crew above 15?"),
    ("assistant", "SELECT COUNT(*) FROM ship WHERE crew > 15;"),
]
CHECK = "Does the result answer the question? Say CORRECT, or WRONG and why."
REWRITE = "This query was wrong. Write a better one, and nothing else."


class State(TypedDict, total=False):
    task: dict[str, Any]
    query: str
    result: str
    failed: bool
    verdict: str
    turns: int


def build(model: ChatOpenAI, checker: ChatOpenAI) -> Any:
    """The graph. Its nodes' names are those by which agents are chosen for training."""

    def question(state: State) -> str:
        return f"Tables:\n{state['task']['schema']}\nQuestion: {state['task']['question']}"

    def write_query(state: State) -> State:
        reply = model.invoke([*WRITE, ("user", question(state))])
        return {"query": query_in(reply.text), "turns": 1}

    def execute_query(state: State) -> State:
        try:
            rows = rows_of(state["task"]["database"], state["query"])
        except QueryError as error:
            return {"result": f"error: {error}", "failed": True}
        return {"result": f"{len(rows)} rows, the first: {rows[:3]}"[:300], "failed": False}

    def check_query(state: State) -> State:
        shown = f"{question(state)}\nQuery: {state['query']}\nResult: {state['result']}"
        return {"verdict": checker.invoke([("system", CHECK), ("user", shown)]).text}

    def rewrite_query(state: State) -> State:
        reply = model.invoke(
            [
                *WRITE,
                ("user", question(state)),
                ("assistant", state["query"]),
                ("user", f"{state['result']}\n{state['verdict']}\n{REWRITE}"),
            ]
        )
        return {"query": query_in(reply.text), "turns": state["turns"] + 1}

    def after_check(state: State) -> str:
        wrong = state["failed"] or state["verdict"].lstrip().upper().startswith("WRONG")
        return "rewrite_query" if wrong and state["turns"] < TURNS else END

    graph = StateGraph(State)
    for node in (write_query, execute_query, check_query, rewrite_query):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "write_query")
    graph.add_edge("write_query", "execute_query")
    graph.add_edge("execute_query", "check_query")
    graph.add_conditional_edges("check_query", after_check, ["rewrite_query", END])
    graph.add_edge("rewrite_query", "execute_query")
    return graph.compile()


def query_in(reply: str) -> str:
    """The query of a reply: what a code fence holds, else all of it, up to the first semicolon."""
    fenced = re.search(r"```(?:sql|sqlite)?\s*(.*?)(?:```|$)", reply, re.DOTALL | re.IGNORECASE)
    return (fenced[1] if fenced else reply).partition(";")[0].strip()


class SqlAgent(LitAgent[dict[str, Any]]):
    """Of a question's rollout the reward is 1 where its last query gives the rows of the right one."""

    def __init__(self, trained_agents: str = "write", max_tokens: int = 256) -> None:
        super().__init__(trained_agents=trained_agents)
        self.max_tokens = max_tokens

    def rollout(self, task: dict[str, Any], resources: Any, rollout: Any) -> float:
        llm = resources["main_llm"]
        model = ChatOpenAI(
            model=llm.model,
            base_url=llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            api_key=llm.api_key,
            temperature=0.0,
            max_completion_tokens=self.max_tokens,
            max_retries=0,
            stop=[";"],
        )
        checker = model.model_copy(update={"max_tokens": 4, "stop": None})
        handler = self.tracer.get_langchain_handler()
        state = build(model, checker).invoke({"task": task}, {"callbacks": [handler] if handler else []})
        return float(same_result(task["database"], state["query"], task["query"]))
