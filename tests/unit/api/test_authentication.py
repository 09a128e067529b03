"""The actor of a token, and how soon a change of the token is known."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from schedd.api import deadlines
from schedd.api.auth import authentication
from schedd.api.auth.authentication import MOST, Authentication, UnknownSubject
from schedd.api.errors import InvalidArgumentError, MemberUnavailableError, UnauthenticatedError
from schedd.core.auth.rights import (
    ANONYMOUS,
    AccessTokenRecord,
    CallerIdentity,
    IdentityKind,
    Role,
    text_of,
)
from schedd.core.ids import AccessTokenId, new_id
from schedkit.errors import Unavailable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFIED = CallerIdentity(IdentityKind.WORKER, "w1", until=NOW + timedelta(days=1))


class Place:
    """A member with these tokens."""

    def __init__(self, *, demanded: bool = True) -> None:
        self.now, self.looked = NOW, 0
        self.rows: dict[AccessTokenId, AccessTokenRecord] = {}
        here = cast("Any", self), cast("Any", Clock(self))
        self.authentication = Authentication(*here, demanded=demanded)

    async def find(self, token: AccessTokenId) -> AccessTokenRecord | None:
        self.looked += 1
        return self.rows.get(token)

    async def find_all(self, tokens: Collection[AccessTokenId]) -> list[AccessTokenRecord]:
        found = [await self.find(token) for token in tokens]
        return [row for row in found if row is not None]

    def token(self, **changes: Any) -> tuple[AccessTokenRecord, str]:
        token_id = AccessTokenId(new_id())
        text, digest = text_of(token_id, bytes(32))
        until = NOW + timedelta(days=1)
        given = "alice", Role.OPERATOR, ("billing",)
        plain = AccessTokenRecord(token_id, digest, *given, NOW, "root", until)
        self.rows[token_id] = replace(plain, **changes)
        return self.rows[token_id], text

    async def known(self, text: str, *, lately: bool = False) -> CallerIdentity:
        sent = (f"Bearer {text}",)
        return await self.authentication.identify_caller(sent, lambda: CERTIFIED, lately=lately)

    async def refused(self, text: str, *, lately: bool = False) -> str:
        with pytest.raises(UnauthenticatedError) as refusal:
            await self.known(text, lately=lately)
        return refusal.value.reason


class UnavailableStore:
    """A database that isn't there."""

    @staticmethod
    async def refuses(_: AccessTokenId) -> AccessTokenRecord | None:
        raise Unavailable("the database isn't there")

    @staticmethod
    async def hangs(_: AccessTokenId) -> AccessTokenRecord | None:
        return await asyncio.Future()


class Clock:
    def __init__(self, place: Place) -> None:
        self._place = place

    def now(self) -> datetime:
        return self._place.now


async def test_two_tokens_in_one_call_are_refused() -> None:
    place = Place()
    both = tuple(f"Bearer {place.token()[1]}" for _ in range(2))
    with pytest.raises(InvalidArgumentError, match="Authorization: the header is given twice"):
        await place.authentication.identify_caller(both, lambda: CERTIFIED)
    assert place.looked == 0


async def test_a_token_names_its_actor_and_role() -> None:
    place = Place()
    token, text = place.token()
    who = await place.authentication.identify_caller((f"bearer {text}",), lambda: None)
    assert (who.actor, who.roles, who.token) == ("user/alice", {"billing": Role.OPERATOR}, token.id)


async def test_known_and_unknown_tokens_are_looked_up_once_per_interval() -> None:
    place = Place()
    _, text = place.token()
    _, other = place.token()
    place.rows.popitem()
    for _ in range(5):
        await place.authentication.of_token(text)
        assert await place.refused(other) == "BAD_TOKEN"
    assert place.looked == 2


async def test_a_wrong_secret_is_refused_even_with_a_valid_id() -> None:
    place = Place()
    token, _ = place.token()
    wrong, _ = text_of(token.id, bytes([1]) * 32)
    assert await place.refused(wrong) == "BAD_TOKEN"


async def test_only_a_caller_with_the_secret_learns_that_a_token_ended() -> None:
    place = Place()
    assert await place.refused(place.token(expires_at=NOW)[1]) == "TOKEN_EXPIRED"
    assert await place.refused(place.token(revoked_at=NOW)[1]) == "TOKEN_REVOKED"
    assert await place.refused(place.token(maker_revoked_at=NOW)[1]) == "TOKEN_REVOKED"
    revoked, _ = place.token(revoked_at=NOW)
    assert await place.refused(text_of(revoked.id, b"x" * 32)[0]) == "BAD_TOKEN"


async def test_a_token_is_verified_from_its_first_use_until_it_ends() -> None:
    place = Place()
    token, text = place.token()
    verified = place.authentication.is_verified
    assert not verified(f"Bearer {text}"), "it wasn't used yet"
    await place.known(text)
    assert verified(f"bearer {text}")
    for other in (text, f"Basic {text}", "", "Bearer", "Bearer schedd_x"):
        assert not verified(other)
    assert not verified(f"Bearer {text_of(token.id, b'x' * 32)[0]}")
    place.now += timedelta(days=1)
    assert not verified(f"Bearer {text}"), "it has expired"
    place.now = NOW
    place.authentication.revoked(token.id)
    assert not verified(f"Bearer {text}"), "it was revoked"


async def test_a_certificate_is_certified_until_it_expires() -> None:
    place = Place()
    certified = place.authentication.is_certified
    assert certified(CERTIFIED)
    assert not certified(UnknownSubject("schedd://nothing"))
    assert not certified(None)
    place.now += timedelta(days=1)
    assert not certified(CERTIFIED)


@pytest.mark.parametrize("sent", ["", "Basic YTpi", "Bearer", "Bearer ", "Bearer schedd_x"])
async def test_a_wrong_header_is_refused_with_any_certificate(sent: str) -> None:
    with pytest.raises(UnauthenticatedError):
        await Place().authentication.identify_caller((sent,), lambda: CERTIFIED)


async def test_a_revocation_is_known_here_at_once_and_elsewhere_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place()
    token, text = place.token()
    await place.authentication.of_token(text)
    place.rows[token.id] = replace(token, revoked_at=NOW)
    await place.authentication.of_token(text)  # what was read just now still stands
    monkeypatch.setattr(authentication, "FRESH", 0.0)
    assert await place.refused(text) == "TOKEN_REVOKED"
    monkeypatch.undo()
    other, text = place.token()
    await place.authentication.of_token(text)
    place.rows[other.id] = replace(other, revoked_at=NOW)
    place.authentication.revoked(other.id)
    assert await place.refused(text) == "TOKEN_REVOKED"


@pytest.mark.slow
@pytest.mark.parametrize("away", ["refuses", "hangs"])
async def test_a_recently_known_token_works_without_a_database(
    away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    _, text = place.token()
    _, never_seen = place.token()
    revoked, other = place.token()
    for each in (text, other):
        await place.authentication.of_token(each)
    place.rows[revoked.id] = replace(revoked, revoked_at=NOW)
    monkeypatch.setattr(authentication, "FRESH", 0.0)
    assert await place.refused(other) == "TOKEN_REVOKED"
    monkeypatch.setattr(authentication, "PROMPT", 0.2)
    monkeypatch.setattr(deadlines, "READ_WITHIN", 0.6)
    monkeypatch.setattr(place, "find", getattr(UnavailableStore, away))

    assert (await place.known(text, lately=True)).actor == "user/alice"
    assert await place.refused(other, lately=True) == "TOKEN_REVOKED"
    for each, lately in ((text, False), (never_seen, True)):
        with pytest.raises((Unavailable, MemberUnavailableError)):
            await place.known(each, lately=lately)
    place.now += timedelta(days=2)
    assert await place.refused(text, lately=True) == "TOKEN_EXPIRED"
    place.now = NOW
    place.authentication.revoked(revoked.id)
    assert (await place.known(text, lately=True)).actor == "user/alice", "another was revoked"


async def test_the_next_caller_gets_the_answer_of_a_slow_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow database isn't unavailable: tokens revoked on another member are refused."""
    place = Place()
    token, text = place.token()
    await place.authentication.of_token(text)
    answers = asyncio.Event()

    async def late(_: AccessTokenId) -> AccessTokenRecord | None:
        await answers.wait()
        return replace(token, revoked_at=NOW)

    monkeypatch.setattr(authentication, "PROMPT", 0.1)
    monkeypatch.setattr(authentication, "FRESH", 0.0)
    monkeypatch.setattr(place, "find", late)
    assert (await place.known(text, lately=True)).actor == "user/alice"
    answers.set()
    await asyncio.sleep(0)
    assert await place.refused(text, lately=True) == "TOKEN_REVOKED"


@pytest.mark.parametrize("above", range(3))
async def test_tokens_created_by_a_token_revoked_here_are_not_recently_known(
    above: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    _, another = place.token()
    first, text = place.token()
    second, made = place.token(maker=first.id, makers=(first.id,))
    third, made_by_that = place.token(maker=second.id, makers=(second.id, first.id))
    for each in (another, text, made_by_that):  # the one between was never read
        await place.authentication.of_token(each)
    monkeypatch.setattr(place, "find", UnavailableStore.refuses)
    place.authentication.revoked((first, second, third)[above].id)
    assert (await place.known(another, lately=True)).actor == "user/alice"
    if above:
        assert (await place.known(text, lately=True)).actor == "user/alice"
    else:
        assert await place.refused(text, lately=True) == "TOKEN_REVOKED"
    assert await place.refused(made_by_that, lately=True) == "TOKEN_REVOKED"
    with pytest.raises(Unavailable):
        await place.known(made, lately=True)


async def test_a_stream_ends_with_the_credentials_of_its_reader() -> None:
    place = Place()
    _, text = place.token()
    who = await place.authentication.of_token(text)
    await place.authentication.check(who)
    await place.authentication.check(CERTIFIED)
    place.now += timedelta(days=1)
    for over in (who, CERTIFIED):
        with pytest.raises(UnauthenticatedError):
            await place.authentication.check(over)


async def test_without_a_token_the_certificate_counts_until_it_ends() -> None:
    place = Place()
    assert await place.authentication.identify_caller((), lambda: CERTIFIED) is CERTIFIED
    place.now += timedelta(days=1)
    with pytest.raises(UnauthenticatedError, match="has expired"):
        await place.authentication.identify_caller((), lambda: CERTIFIED)
    with pytest.raises(UnauthenticatedError, match="credentials are missing"):
        await place.authentication.identify_caller((), lambda: None)


@pytest.mark.parametrize(
    ("uris", "said"),
    [
        ((), "no URI at all"),
        (("SCHEDD://user/bob/admin/*",), "'SCHEDD://user/bob/admin/*'"),
        (("schedd://user/bob/owner/*",), "'schedd://user/bob/owner/*'"),
        (
            ("schedd://worker/w1", "schedd://worker/w2"),
            "'schedd://worker/w1', 'schedd://worker/w2'",
        ),
        (("schedd://" + "x" * 9_999,) * 9, " and 5 more"),
    ],
)
async def test_a_certificate_without_a_name_and_a_missing_one_have_different_errors(
    uris: tuple[str, ...], said: str
) -> None:
    authentication = Place().authentication
    with pytest.raises(UnauthenticatedError) as refusal:
        await authentication.identify_caller(
            (), lambda: authentication.of_certificate(b"pem", uris)
        )
    assert refusal.value.reason == "CERTIFICATE_WITHOUT_SUBJECT"
    assert "the client certificate has no name that schedd knows" in refusal.value.message
    assert said in refusal.value.message
    assert len(refusal.value.message) < 1_000
    for right in ("schedd://user/NAME/ROLE/NAMESPACE", "schedd://worker/NAME", "one subject"):
        assert right in refusal.value.remedy
    assert "use a client certificate" not in refusal.value.remedy


async def test_a_caller_is_anonymous_where_authentication_is_off() -> None:
    place = Place(demanded=False)
    assert await place.authentication.identify_caller(("Bearer wrong",), lambda: None) is ANONYMOUS
    assert place.looked == 0


@pytest.mark.slow
async def test_the_token_cache_is_bounded() -> None:
    place = Place()
    for number in range(MOST + 10):
        text, _ = text_of(AccessTokenId(new_id()), number.to_bytes(32))
        assert await place.refused(text) == "BAD_TOKEN"
    assert len(place.authentication._rows) == MOST


async def test_verified_tokens_do_not_wait_for_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place()
    _, text = place.token()
    await place.known(text)
    monkeypatch.setattr(place, "find_all", UnavailableStore.hangs)
    monkeypatch.setattr(authentication, "FRESH", 0.0)
    unknown = [asyncio.create_task(place.refused(random_text())) for _ in range(1_000)]
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert (await place.known(text)).actor == "user/alice"
    assert not any(each.done() for each in unknown)
    for each in unknown:
        each.cancel()
    await asyncio.wait(unknown)
    assert not place.authentication._unknown._waiting


@pytest.mark.slow
async def test_unknown_tokens_share_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    place, sizes = Place(), []
    token, text = place.token()

    async def find_all(tokens: Collection[AccessTokenId]) -> list[AccessTokenRecord]:
        sizes.append(len(tokens))
        return [token] if token.id in tokens else []

    monkeypatch.setattr(place, "find_all", find_all)
    refused = [place.refused(random_text()) for _ in range(authentication.UNKNOWN_AT_ONCE)]
    *reasons, who = await asyncio.gather(*refused, place.known(text))
    assert set(reasons) == {"BAD_TOKEN"}
    assert who.actor == "user/alice"
    assert sizes == [authentication.UNKNOWN_AT_ONCE, 1]


def random_text() -> str:
    return text_of(AccessTokenId(new_id()), new_id() * 2)[0]
