"""Scripted members on real sockets, and a client that talks to them."""

from collections.abc import AsyncIterator

import pytest

from schedclient import Client
from support.scripted import Scripted


@pytest.fixture
async def member() -> AsyncIterator[Scripted]:
    scripted = await Scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def other() -> AsyncIterator[Scripted]:
    scripted = await Scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def client(member: Scripted) -> AsyncIterator[Client]:
    async with Client(member.address, timeout=5) as c:
        yield c
