"""A model that is ready to sample, for the commands that open no run. Torch is loaded when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.settings.fields import RunConfig

if TYPE_CHECKING:
    from agentlightning.engines.local.engine import LocalEngine
    from agentlightning.templates.base import Template


async def load_engine(config: RunConfig, policy: str = "main") -> tuple[LocalEngine, Template]:
    """The engine, started, under the name by which it is asked for samples, and the model's template. Raises ModelError
    or ConfigError."""
    from agentlightning.engines.local.engine import LocalEngine
    from agentlightning.engines.local.threads import Threads
    from agentlightning.engines.models import load_model
    from agentlightning.templates import load_template

    threads = Threads(config.threads)
    model = load_model(config.model, threads)
    template = load_template(
        model.tokenizer,
        tool_format=config.model.tool_format,
        stop_token_ids=model.stop_token_ids,
        keep_reasoning=config.model.keep_reasoning,
        reasoning_tags=config.model.reasoning_tags,
    )
    engine = LocalEngine(
        model.model, model.tokenizer, config.engine, policy=policy, context_length=model.context_length, threads=threads
    )
    await engine.start()
    return engine, template
