"""The HTTP server within the loop of a caller."""

from __future__ import annotations

import asyncio
import signal

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schedd.web.server import bound
from schedkit.errors import Misconfigured


def app_of(*routes: Route) -> Starlette:
    app = Starlette(routes=list(routes))
    app.state.closing = asyncio.Event()
    return app


async def test_a_bound_server_has_an_address_before_it_serves() -> None:
    async with bound("127.0.0.1:0") as http:
        assert http.port > 0
        assert http.address == f"127.0.0.1:{http.port}"
        with pytest.raises(Misconfigured, match=f"can't listen on {http.address}"):
            async with bound(http.address):
                pass


async def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(Misconfigured):
        async with bound("localhost"):
            pass


async def test_signals_stay_with_the_daemon() -> None:
    async def ok(_: Request) -> Response:
        return PlainTextResponse("ok")

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with bound("127.0.0.1:0") as http, aiohttp.ClientSession() as session:
        server = asyncio.create_task(http.serve(app_of(Route("/", ok))))
        async with session.get(f"http://{http.address}/") as answer:
            assert await answer.text() == "ok"
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before
        server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server


async def test_a_request_under_way_is_finished_when_the_server_ends() -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        asked.set()
        await finish.wait()
        return PlainTextResponse("done")

    async with bound("127.0.0.1:0") as http, aiohttp.ClientSession() as session:
        server = asyncio.create_task(http.serve(app_of(Route("/", slow))))

        async def ask() -> str:
            async with session.get(f"http://{http.address}/") as answer:
                return await answer.text()

        answer = asyncio.create_task(ask())
        await asked.wait()
        server.cancel()
        finish.set()
        assert await answer == "done"
        await asyncio.wait([server])
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask()
