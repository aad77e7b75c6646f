"""``agl serve``: a model, or a run's checkpoint, behind all the APIs that training serves, for clients as they are.
Records nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import signal
from pathlib import Path

from agentlightning.errors import ConfigError
from agentlightning.settings.fields import RunConfig, SamplingConfig
from agentlightning.settings.sources import Resolved
from agentlightning.text import clean_name, plural, printable

NO_KEY = "none"
"""What is given as ``--key`` to let everybody in."""

DRAIN = 2.0
"""Seconds, at most, that open calls get at the end."""


def serve(resolved: Resolved, said: str, *, key: str | None) -> None:
    """Answers until Ctrl-C or SIGTERM. ``said`` is what is known of the model besides its path. Raises ConfigError or
    ModelError before it is loaded."""
    from agentlightning.gateway.server import bind

    config = resolved.config
    key = None if key == NO_KEY else key or f"agl-{secrets.token_urlsafe(24)}"
    _check_key(key, config.gateway.host)
    bind(config.gateway).close()  # a port that is taken is said before a model is loaded
    given = resolved.sources.get("sampling.max_tokens", "default") != "default"
    asyncio.run(_serve(config, said, key, own_ceiling=given))


async def _serve(config: RunConfig, said: str, key: str | None, *, own_ceiling: bool) -> None:
    from agentlightning.cli.engine import load_engine
    from agentlightning.cli.streams import say
    from agentlightning.gateway.model_server import ModelServer
    from agentlightning.gateway.served import Served

    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    say(f"loading {config.model.path}")
    name = clean_name(Path(config.model.path).name) or "model"
    engine, template = await load_engine(config, name)
    try:
        sampling = config.sampling if own_ceiling else _unlimited(config.sampling, engine.context_length)
        settings = config.gateway.model_copy(update={"drain": min(config.gateway.drain, DRAIN)})
        gateway = ModelServer(Served(name, engine, template), settings, sampling, key)
        await gateway.start()
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, over.set)
            say(_lines(said or config.model.path, name, gateway.url, key))
            await over.wait()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)  # once more ends it at once
        finally:
            await gateway.close()
        say(f"\nended: {plural(gateway.record.calls, 'call')} answered")
    finally:
        await engine.close()


def _unlimited(sampling: SamplingConfig, context_length: int) -> SamplingConfig:
    """The training's ceiling on a sample is not the client's: without one of its own a sample may fill the context."""
    return sampling.model_copy(update={"max_tokens": context_length})


def _check_key(key: str | None, host: str) -> None:
    if key is not None and (not key.isascii() or not key.isprintable() or " " in key):
        raise ConfigError(
            "--key: a key is sent in a header, so it is ASCII without spaces; leave the option out for a fresh one"
        )
    if key is None and not _is_loopback(host):
        raise ConfigError(
            f"--host {printable(host)} --key {NO_KEY}: anybody who reaches this machine could use the model; give a "
            "key, or leave --key out for a fresh one"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _lines(said: str, name: str, url: str, key: str | None) -> str:
    """What is served, and the variables from which clients read where: to be copied into a shell or an ``.env``
    file."""
    sent = key or "unused"
    variables = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": sent,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": sent,
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": sent,
    }
    exports = "\n".join(f"export {variable}={value}" for variable, value in variables.items())
    return f"{exports}\n{printable(said)} answers as {name!r}, and to any other name, until Ctrl-C"
