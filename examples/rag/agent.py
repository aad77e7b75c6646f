"""Question answering over a corpus, with the OpenAI Agents SDK and BM25.

Two agents to choose from: `reader` is given the passages that the question finds, `searcher` has a tool to look for
them itself, as often as it likes. The reward is the F1 of the answer's words.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from corpus import passages
from openai import AsyncOpenAI
from rank_bm25 import BM25Okapi

from agentlightning import rollout

PASSAGES = 2
"""That a search finds."""

READ = "Answer the question from the passages."
SEARCH = "Search the passages, then answer the question in as few words as possible. Search again for a name you found."


def words(text: str) -> list[str]:
    """Of a text in lower case, without articles."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")]


@functools.cache
def index() -> tuple[BM25Okapi, list[str]]:
    corpus = passages()
    return BM25Okapi([words(passage) for passage in corpus]), corpus


def retrieve(query: str) -> list[str]:
    """The passages that fit best, the best first."""
    bm25, corpus = index()
    return bm25.get_top_n(words(query), corpus, n=PASSAGES)


@function_tool
def search(query: str) -> str:
    """Finds passages.

    Args:
        query: What to look for.
    """
    return "\n".join(retrieve(query))


def f1(said: str, right: str) -> float:
    """The harmonic mean of the share of the said words that are right, and of the right words that are said."""
    ours, theirs = words(said), words(right)
    both = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * both / (len(ours) + len(theirs)) if both else 0.0


def make(kind: str = "reader", max_tokens: int = 24) -> Any:
    """The agent function that is trained."""

    @rollout
    async def rag(task: dict[str, Any], llm: Any) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
            agent = Agent(
                name=kind,
                instructions=READ if kind == "reader" else SEARCH,
                model=OpenAIChatCompletionsModel(model=llm.model, openai_client=client),
                model_settings=ModelSettings(max_tokens=max_tokens),
                tools=[search] if kind == "searcher" else [],
            )
            asked = task["question"]
            if kind == "reader":
                asked = "\n".join([*retrieve(asked), f"Question: {asked}"])
            result = await Runner.run(agent, asked, max_turns=6, run_config=RunConfig(tracing_disabled=True))
        return f1(str(result.final_output), task["answer"])

    return rag
