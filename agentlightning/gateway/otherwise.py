"""Otherwise: the trace tree that an attempt's calls would have made had their histories been rendered the other way. For `agl dev`, which shows both.

Pure. Each recorded call is placed once more, with its own messages and samples, in a tree under the policy's other rendering. What the model would have
said to other prompts nobody knows: the replies are those that were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentlightning.engines.base import Sample
from agentlightning.errors import TemplateError
from agentlightning.gateway.tree import TraceTree
from agentlightning.gateway.wires.base import WireRequest
from agentlightning.templates.base import Template
from agentlightning.types import Message, Node


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a call is in a tree: the last node of its prompt, and those that its samples end in."""

    index: int
    prompt_node: int
    leaves: tuple[int, ...]


@dataclass(slots=True)
class Otherwise:
    """``nodes`` are those of the other tree, parents first, and ``calls`` where the calls are in it, in the order in which they were recorded.

    ``failed`` says why a call could not be placed; what is here is then no whole attempt.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    calls: list[Placed] = field(default_factory=list[Placed])
    failed: str | None = None
    _tree: TraceTree = field(default_factory=TraceTree)

    def add(
        self, request: WireRequest, policy: str, template: Template, samples: Sequence[tuple[Sample, Message]], call_index: int
    ) -> None:
        """Places a call that has been recorded."""
        if self.failed is not None:
            return
        try:
            if request.prompt is not None:
                plan = self._tree.plan_prompt(request.prompt, policy, template)
            else:
                plan = self._tree.plan(request.messages, request.tools, policy, template)
        except (TemplateError, RecursionError) as error:
            self.failed = f"call {call_index}: {error}"
            return
        nodes, leaves = self._tree.grow(plan, samples, call_index)
        self._tree.publish(plan, leaves)
        self.nodes += nodes
        prompt, ends = plan.node.id, [leaf.node.id for leaf in leaves]
        assert prompt is not None
        self.calls.append(Placed(call_index, prompt, tuple(end for end in ends if end is not None)))
