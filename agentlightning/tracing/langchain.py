"""LangGraph: the node that a chat model is asked in.

LangChain keeps the configuration of what runs in the context, and LangGraph its node in there: that is read at each
reply, and needs nothing of the program. `get_langchain_handler` is for programs that ask for a handler to pass on,
``graph.invoke(x, config={"callbacks": [handler]})``; it also names what runs where no context of the program's reaches.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from agentlightning.errors import ConfigError
from agentlightning.tracing.names import MOST, Named, current, name_in, never_raising

NODE = "langgraph_node"


def current_node() -> Named | None:
    """The node that runs here; None outside a graph."""
    runnables: Any = sys.modules.get("langchain_core.runnables.config")
    config = runnables.var_child_runnable_config.get() if runnables is not None else None
    return _node_in(config.get("metadata")) if config is not None else None


def _node_in(metadata: object) -> Named | None:
    node = cast("Mapping[str, object]", metadata).get(NODE) if isinstance(metadata, Mapping) else None
    return name_in({NODE: node}) if node is not None else None


def get_langchain_handler(tags: Sequence[str] | None = None) -> Any:
    """A callback handler that names each call after the LangGraph node that it was made in; outside any attempt it does
    nothing. None where langchain_core is not installed.

    Raises ConfigError for ``tags``: they belong into the config of what is invoked.
    """
    if tags:
        raise ConfigError(
            f"get_langchain_handler(tags={list(tags)!r}): a handler has no tags here; pass them where you invoke, "
            "config={'tags': [...], 'callbacks': [handler]}"
        )
    try:
        base: Any = import_module("langchain_core.callbacks").BaseCallbackHandler
    except ImportError:
        return None
    return _handler_class(base)()


def _handler_class(base: Any) -> Any:
    class AgentNames(base):
        """Remembers which node a model runs in until its reply is there."""

        run_inline = True  # in the caller's context, which is the attempt's

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self._nodes: OrderedDict[Any, Named] = OrderedDict()

        def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **more: Any) -> None:
            self._begin(run_id, more.get("metadata"))

        def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: Any, **more: Any) -> None:
            self._begin(run_id, more.get("metadata"))

        @never_raising
        def on_llm_end(self, response: Any, *, run_id: Any, **more: Any) -> None:
            named, names = self._nodes.pop(run_id, None), current()
            if names is not None and named is not None:
                for reply_id in reply_ids(response):
                    names.add(reply_id, named)

        def on_llm_error(self, error: BaseException, *, run_id: Any, **more: Any) -> None:
            self._nodes.pop(run_id, None)

        @never_raising
        def _begin(self, run_id: Any, metadata: Any) -> None:
            if (named := _node_in(metadata)) is not None:
                self._nodes[run_id] = named
                if len(self._nodes) > MOST:
                    self._nodes.popitem(last=False)

    return AgentNames


def reply_ids(result: Any) -> list[str]:
    """Where LangChain's wrappers keep the id that the API gave its reply: all that may be it, for one that is none
    names no call."""
    generations = [each for several in result.generations for each in several]
    messages = [message for each in generations if (message := getattr(each, "message", None)) is not None]
    places: list[Any] = [result.llm_output, *(each.generation_info for each in generations)]
    places += [message.response_metadata for message in messages]
    ids: list[Any] = [place.get("id") for place in places if place] + [message.id for message in messages]
    return list(dict.fromkeys(each for each in ids if isinstance(each, str) and each))
