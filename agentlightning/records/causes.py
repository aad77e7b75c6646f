"""Why no call of an agent reaches the endpoint: causes that were seen in its code and surroundings, for the dev report.
Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.records.probe import PLACEHOLDER

if TYPE_CHECKING:
    from agentlightning.records.probe import AgentProbe, ClientFound, CodePlace

CACHE_OFF = "turn it off for training: each rollout of a task has to sample anew"


def causes_of_silence(probe: AgentProbe) -> list[tuple[str, str]]:
    """Causes that were seen, each with what to do about it."""
    causes: list[tuple[str, str]] = []
    in_thread = probe.isolation == "thread"
    for setting in probe.settings:
        remedy = (
            "take it out there, or do not pass it on"
            if setting.origin
            else "remove it, or put llm.endpoint in its place"
        )
        causes.append((_says(setting), remedy))
    for client in probe.clients:
        if client.base_url.startswith(PLACEHOLDER):
            continue  # made from the environment, which every attempt's own process sets before it imports the module
        made = _made(client)
        if in_thread:
            causes.append((made, "make it inside the agent with base_url=llm.endpoint, or use isolation='process'"))
        elif client.place and any(client.place == setting.place for setting in probe.settings):
            continue  # that line has been named
        elif client.origin:
            remedy = "take it out there, or do not pass it on: OPENAI_BASE_URL is set before the module is imported"
            causes.append((f"{made}, which stands in {client.origin}", remedy))
        elif not probe.settings:
            causes.append((made, "leave out its base_url: OPENAI_BASE_URL is set before the module is imported"))
    if in_thread and not probe.parameters & {"llm", "resources"}:
        cause = (
            "the agent takes neither llm nor resources, and isolation='thread' has no environment of its own to "
            "put OPENAI_BASE_URL in"
        )
        causes.append((cause, "take a parameter llm and use llm.endpoint, or use isolation='process'"))
    for cache in probe.caches:
        causes.append((f"{cache.place} says {cache.what}: replies may come from there", CACHE_OFF))
    if probe.proxies and (in_thread or not causes):
        cause = (
            f"{', '.join(probe.proxies)} is set, and a client that was made before the run began, or does not read "
            "NO_PROXY, calls that proxy"
        )
        causes.append((cause, "make the client inside the agent, or start Python with NO_PROXY=127.0.0.1,localhost"))
    return causes


def causes_elsewhere(probe: AgentProbe) -> list[str]:
    """What leads some of the calls to a fixed address, in an agent that also calls the endpoint: somebody else's model,
    or a client that was forgotten."""
    settings = [_says(setting) for setting in probe.settings]
    places = {setting.place for setting in probe.settings}
    clients = [
        _made(client)
        for client in probe.clients
        if not client.base_url.startswith(PLACEHOLDER) and client.place not in places
    ]
    return settings + clients


def _says(setting: CodePlace) -> str:
    return f"{setting.place} says {setting.what}" + (f", which stands in {setting.origin}" if setting.origin else "")


def _made(client: ClientFound) -> str:
    at = f" ({client.place})" if client.place else ""
    return f"{client.name} ({client.kind}) is made when the module is imported, with the base URL {client.base_url}{at}"


def likely_cause(probe: AgentProbe | None) -> str:
    """The first of them as an addition to a sentence, or nothing. No more than likely: the agent may have failed of
    itself before its first call."""
    causes = causes_of_silence(probe) if probe is not None else []
    return f"; no call reached the endpoint, which may be for this: {causes[0][0]}; {causes[0][1]}" if causes else ""
