"""A stream ends with what its reader was known by, though nothing happens on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from schedd.api import calls
from schedd.api.auth import authentication
from schedd.api.auth.authentication import Authentication
from schedd.api.errors import UnauthenticatedError
from schedd.api.runs import stream_readers
from schedd.api.services import Caller
from schedd.core.auth.rights import (
    ANONYMOUS,
    AccessTokenRecord,
    CallerIdentity,
    IdentityKind,
    Role,
    text_of,
)
from schedd.core.ids import AccessTokenId, new_id
from schedd.store.access_tokens import AccessTokenStore
from schedkit.errors import Unavailable
from schedproto.v1.run_service_pb2 import WatchRunsRequest
from support.fake_of import fake_of
from support.wait import WAIT_TIMEOUT, wait_until_async

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFIED = CallerIdentity(
    IdentityKind.USER, "bob", {"*": Role.VIEWER}, until=NOW + timedelta(days=1)
)


@fake_of(AccessTokenStore)
class Stored:
    """The stored tokens, shared by all members. `now` is the clock of the members."""

    def __init__(self) -> None:
        self.time, self.rows = NOW, dict[AccessTokenId, AccessTokenRecord]()
        self.alone = self.together = 0
        self.away = False

    def now(self) -> datetime:
        return self.time

    async def find(self, token: AccessTokenId) -> AccessTokenRecord | None:
        self.alone += 1
        return self.rows.get(token)

    async def find_all(self, tokens: Collection[AccessTokenId]) -> list[AccessTokenRecord]:
        self.together += 1
        if self.away:
            raise Unavailable("PostgreSQL: away")
        return [self.rows[token] for token in tokens if token in self.rows]

    def token(self) -> tuple[AccessTokenId, str]:
        token_id = AccessTokenId(new_id())
        text, digest = text_of(token_id, bytes(32))
        given = "alice", Role.OPERATOR, ("billing",)
        until = NOW + timedelta(days=1)
        self.rows[token_id] = AccessTokenRecord(token_id, digest, *given, NOW, "root", until)
        return token_id, text

    def revoke(self, token: AccessTokenId) -> None:
        self.rows[token] = replace(self.rows[token], revoked_at=NOW)


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the times."""
    monkeypatch.setattr(stream_readers, "TICK", 0.01)
    monkeypatch.setattr(authentication, "TICK", 0.01)
    monkeypatch.setattr(authentication, "FRESH", 0.05)


@asynccontextmanager
async def member(stored: Stored) -> AsyncIterator[Authentication]:
    """Yield the authentication of a member whose loops run."""
    made = Authentication(cast("Any", stored), cast("Any", stored), demanded=True)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run()) for each in made.readers.loops]
        yield made
        for task in tasks:
            task.cancel()


class Quiet:
    """A stream that sends nothing until the test puts an item. It records whether it was closed."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[int] = asyncio.Queue()
        self.closed = False

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            while True:
                yield await self.items.get()
        finally:
            self.closed = True


async def read(here: Authentication, who: CallerIdentity, quiet: Quiet) -> list[int]:
    async with aclosing(here.readers.until_over(who, quiet.stream())) as stream:
        return [item async for item in stream]


async def refused(reading: asyncio.Task[list[int]]) -> str:
    with pytest.raises(UnauthenticatedError) as over:
        await asyncio.wait_for(reading, WAIT_TIMEOUT)
    return over.value.reason


async def test_a_quiet_stream_ends_when_its_token_is_revoked_on_another_member(
    stored: Stored,
) -> None:
    token, text = stored.token()
    async with member(stored) as here:
        quiet = Quiet()
        who = await here.of_token(text)
        reading = asyncio.create_task(read(here, who, quiet))
        await wait_until_async(lambda: stored.together > 1, WAIT_TIMEOUT, "looks")
        assert not reading.done()
        stored.revoke(token)
        assert await refused(reading) == "TOKEN_REVOKED"
        assert quiet.closed


async def test_a_stream_ends_at_once_on_the_member_that_revoked_its_token(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_readers, "TICK", 3600.0)
    monkeypatch.setattr(authentication, "FRESH", 3600.0)
    token, text = stored.token()
    async with member(stored) as here:
        reading = asyncio.create_task(read(here, await here.of_token(text), Quiet()))
        await asyncio.sleep(0)
        stored.revoke(token)
        here.revoked(token)
        assert await refused(reading) == "TOKEN_REVOKED"


@pytest.mark.parametrize("by", ["token", "certificate"])
async def test_a_quiet_stream_ends_when_its_credentials_expire_during_an_outage(
    stored: Stored, by: str
) -> None:
    _, text = stored.token()
    async with member(stored) as here:
        who = CERTIFIED if by == "certificate" else await here.of_token(text)
        stored.away = True
        reading = asyncio.create_task(read(here, who, Quiet()))
        done, _ = await asyncio.wait([reading], timeout=0.1)
        assert not done
        stored.time += timedelta(days=1)
        expected = "TOKEN_EXPIRED" if by == "token" else "CERTIFICATE_EXPIRED"
        assert await refused(reading) == expected


async def test_a_stream_outlasts_a_database_outage_but_no_revocation_after_it(
    stored: Stored,
) -> None:
    token, text = stored.token()
    async with member(stored) as here:
        quiet = Quiet()
        reading = asyncio.create_task(read(here, await here.of_token(text), quiet))
        stored.away = True
        before = stored.together
        await wait_until_async(lambda: stored.together > before + 3, WAIT_TIMEOUT, "tries")
        assert not reading.done()
        stored.revoke(token)
        stored.away = False
        assert await refused(reading) == "TOKEN_REVOKED"


@pytest.mark.slow
async def test_all_streams_of_a_member_share_one_lookup_per_interval(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of all callers share it: a stream costs no query of its own."""
    monkeypatch.setattr(authentication, "FRESH", 0.5)
    async with member(stored) as here:
        texts = [stored.token()[1] for _ in range(256)]
        known = [await here.of_token(text) for text in texts]
        reading = [asyncio.create_task(read(here, who, Quiet())) for who in known]
        logins, stored.together = stored.together, 0
        began = asyncio.get_running_loop().time()
        await wait_until_async(lambda: stored.together >= 3, WAIT_TIMEOUT, "looks")
        for who in known:
            await here.check(who)
        took = asyncio.get_running_loop().time() - began
        assert stored.together <= 2 + took / 0.4
        assert (logins, stored.alone) == (256, 0), "each once, when it came"
        for token in [*stored.rows][:255]:
            stored.revoke(token)
        await asyncio.wait(reading[:255], timeout=WAIT_TIMEOUT)
        assert {await refused(one) for one in reading[:255]} == {"TOKEN_REVOKED"}
        assert not reading[255].done()
        reading[255].cancel()


async def test_no_item_is_lost_while_its_reader_is_checked(stored: Stored) -> None:
    _, text = stored.token()
    async with member(stored) as here:
        quiet, got = Quiet(), list[int]()

        async def reads() -> None:
            async for item in here.readers.until_over(await here.of_token(text), quiet.stream()):
                got.append(item)

        reading = asyncio.create_task(reads())
        for number in range(50):
            await asyncio.sleep(0.005)
            quiet.items.put_nowait(number)
        await wait_until_async(lambda: len(got) == 50, WAIT_TIMEOUT, "all of them")
        assert got == [*range(50)]
        reading.cancel()


async def test_a_stream_that_ends_between_two_items_sends_no_more(stored: Stored) -> None:
    async with member(stored) as here:
        quiet = Quiet()
        for number in range(2):
            quiet.items.put_nowait(number)
        async with aclosing(here.readers.until_over(CERTIFIED, quiet.stream())) as stream:
            assert await anext(stream) == 0
            stored.time += timedelta(days=1)
            await wait_until_async(lambda: not here.readers._readers, WAIT_TIMEOUT, "its end")
            with pytest.raises(UnauthenticatedError):
                await anext(stream)


async def test_a_call_with_an_expired_reader_leaves_no_stream_behind(stored: Stored) -> None:
    async with member(stored) as here:
        services, quiet = cast("Any", SimpleNamespace(authentication=here)), Quiet()
        call = calls._checked_stream("schedd.v1.RunService.WatchRuns", lambda *_: quiet.stream())
        quiet.items.put_nowait(1)
        stream = call(services, Caller(CERTIFIED, "test"), WatchRunsRequest())
        assert await anext(stream) == 1
        stored.time += timedelta(days=1)
        await wait_until_async(lambda: not here.readers._readers, WAIT_TIMEOUT, "its end")
        with pytest.raises(UnauthenticatedError):
            await anext(stream)
        assert quiet.closed


async def test_a_timeout_of_the_stream_itself_is_raised_unchanged(stored: Stored) -> None:
    async def late() -> AsyncGenerator[int, None]:
        raise TimeoutError("its own")
        yield 0

    async with member(stored) as here:
        with pytest.raises(TimeoutError, match="its own"):
            await anext(here.readers.until_over(CERTIFIED, late()))


async def test_closed_streams_and_anonymous_readers_are_not_checked(stored: Stored) -> None:
    _, text = stored.token()
    async with member(stored) as here:
        who = await here.of_token(text)
        quiet = Quiet()
        async with aclosing(here.readers.until_over(who, quiet.stream())) as stream:
            quiet.items.put_nowait(1)
            assert await anext(stream) == 1
            assert len(here.readers._readers) == 1
        assert not here.readers._readers
        async with aclosing(here.readers.until_over(ANONYMOUS, quiet.stream())) as stream:
            quiet.items.put_nowait(2)
            assert await anext(stream) == 2
            assert not here.readers._readers
