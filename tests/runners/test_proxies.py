"""Whatever proxy the environment names, agents reach the run's own endpoint, by every client and at every host form
that it may listen on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import proxy_bypass_environment

import pytest

from agentlightning.gateway import Gateway, Served
from agentlightning.runners import proxies
from agentlightning.runners.proxies import Bypass, proxies_in, without_proxy
from agentlightning.settings.fields import GatewayConfig
from tests.runners import clients
from tests.runners.conftest import PlainTemplate

ALL = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


def _ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", "localhost", "0.0.0.0", socket.gethostname(), *(["::1", "::"] if _ipv6() else [])]


class _Proxy(BaseHTTPRequestHandler):
    """Notes what it is asked for, and knows nobody."""

    def do_POST(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_error(502)

    do_GET = do_CONNECT = do_POST

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What comes to the proxy that the environment names."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ALL:
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_address[1]}")
    yield server.asked  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", HOSTS)
async def test_every_client_reaches_the_endpoint_past_a_proxy(world, isolation, host, asked):
    gateway = Gateway(
        world.store, {"main": Served("main", world.engine, PlainTemplate())}, GatewayConfig(host=host, drain=0.5)
    )
    try:
        await gateway.start()
    except Exception as error:
        pytest.skip(f"this machine has no {host}: {error}")
    world.gateway, first = gateway, world.gateway
    agent = f"{clients.__file__}:every_client" if isolation == "process" else clients.every_client
    try:
        (rollout,) = await world.run(agent, isolation=isolation, deadline=60)
    finally:
        await gateway.close()
        world.gateway = first
    assert rollout.failure is None, rollout.failure
    assert asked == []


async def test_the_environment_is_as_it_was_once_the_last_pool_is_closed(world, asked, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    agent = clients.every_client
    first, second = world.make_runners(agent, isolation="thread"), world.make_runners(agent, isolation="thread")
    await first.start()
    await second.start()
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "intranet.example,127.0.0.1,localhost"
    await first.close()
    assert "127.0.0.1" in os.environ["NO_PROXY"], "the other pool is still open"
    await second.close()
    assert os.environ["NO_PROXY"] == "intranet.example" and "no_proxy" not in os.environ


def test_open_runs_are_counted_and_what_somebody_else_set_meanwhile_stays(monkeypatch):
    for name in ALL:
        monkeypatch.delenv(name, raising=False)
    bypass = Bypass()
    bypass.enter("http://one.example:1")
    bypass.enter("http://two.example:2")
    assert os.environ["no_proxy"] == "one.example,two.example,127.0.0.1,localhost"
    bypass.leave("http://one.example:1")
    assert os.environ["NO_PROXY"] == "two.example,127.0.0.1,localhost"
    os.environ["NO_PROXY"] = "mine.example"
    bypass.leave("http://two.example:2")
    assert os.environ.pop("NO_PROXY") == "mine.example" and "no_proxy" not in os.environ


def test_no_proxy_for_any_host_stays_that():
    extended = without_proxy(["http://127.0.0.1:1"], {"NO_PROXY": "*", "HTTP_PROXY": "x"})
    assert extended == {"no_proxy": "*", "NO_PROXY": "*"}
    assert proxy_bypass_environment("anything.example", {"no": extended["NO_PROXY"]})


@pytest.mark.parametrize(("installed", "forms"), [(None, ["::1", "[::1]"]), (object(), ["::1"])])
def test_an_ipv6_address_is_written_in_no_form_that_breaks_a_client_that_is_installed(monkeypatch, installed, forms):
    monkeypatch.setattr(proxies, "find_spec", lambda name: installed)
    assert without_proxy(["http://[::1]:80"], {})["NO_PROXY"].split(",") == [*forms, "127.0.0.1", "localhost"]


def test_a_proxy_for_other_schemes_is_none_for_the_endpoint():
    given = {"HTTPS_PROXY": "x", "ftp_proxy": "x", "Http_Proxy": "x", "ALL_PROXY": "", "all_proxy": "x"}
    assert proxies_in(given) == ["Http_Proxy", "all_proxy"]


def test_where_the_system_keeps_the_proxies_the_environment_is_left_alone(monkeypatch):
    monkeypatch.setattr(proxies.sys, "platform", "darwin")
    assert without_proxy(["http://127.0.0.1:1"], {}) == {}
    assert without_proxy(["http://127.0.0.1:1"], {"HTTP_PROXY": "x"})["no_proxy"] == "127.0.0.1,localhost"
