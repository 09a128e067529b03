"""Calls on access tokens; logins, which are short-lived ones; and who the caller is."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final
from uuid import uuid4

from schedd.api import paging, views
from schedd.api.auth.authentication import ended
from schedd.api.definitions import validation
from schedd.api.errors import FailedPrecondition, NotFound, Unauthenticated, Violation, cut, refuse
from schedd.api.field_bounds import id_of
from schedd.api.services import Caller, Services, compact
from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import (
    LIFETIME,
    LONGEST,
    SECRET_BYTES,
    SESSION,
    AccessToken,
    text_of,
)
from schedd.core.jobs.rights import EVERY, Role, is_name
from schedd.core.runs.model import AuditEntry
from schedd.ports.access_tokens import Revoked
from schedproto.v1 import auth_service_pb2 as wire

MOST_NAMESPACES: Final = 100
SHORTEST: Final = timedelta(minutes=1)
MOST_DEEP: Final = 32
"""Makers above a token: whoever is asked who a token is looks at all of them."""
MOST_NOTED: Final = 100
"""Of those that end with one that is revoked the audit has no more ids, and how many they are."""


async def create_token(
    services: Services, caller: Caller, request: wire.CreateTokenRequest
) -> wire.CreateTokenResponse:
    """Make one; its text is told once, here. One that a token makes ends with that: nobody stays
    longer than they were let in for.
    """
    now = services.clock.now()
    asked = request.lifetime.ToTimedelta() if request.HasField("lifetime") else None
    ends = _maker_ends(caller)
    lifetime = LIFETIME if asked is None else asked
    refuse([*_faults(request, lifetime), *_too_late(asked, now, ends)], "INVALID_TOKEN")
    await _not_too_deep(services, caller)
    token, text = _drawn(
        AccessToken(
            id=AccessTokenId(uuid4()),
            digest=b"",
            name=request.name,
            role=Role(request.role),
            namespaces=tuple(sorted({*request.namespaces} or {EVERY})),
            created_at=now,
            created_by=caller.actor,
            expires_at=now + lifetime if ends is None else min(now + lifetime, ends),
            maker=caller.who.token,
        )
    )
    entry = caller.audit("create", f"token/{token.id}", request.request_id)
    await _store(services, token, replace(entry, after=compact(_said(token))))
    return wire.CreateTokenResponse(token=_message(token), secret=text)


async def list_tokens(
    services: Services, caller: Caller, request: wire.ListTokensRequest
) -> wire.ListTokensResponse:
    """A page of them, newest first."""
    del caller
    size = paging.size(request.page_size)
    after = paging.read_token("tokens", request.page_token)
    rows = await services.access_tokens.list(
        (after[0], AccessTokenId(after[1])) if after else None, size + 1
    )
    page = rows[:size]
    return wire.ListTokensResponse(
        tokens=[_message(token) for token in page],
        next_page_token=(
            paging.token("tokens", page[-1].created_at, page[-1].id) if rows[size:] else ""
        ),
    )


async def revoke_token(
    services: Services, caller: Caller, request: wire.RevokeTokenRequest
) -> wire.Token:
    """It is worth nothing any more, nor is what was made by it."""
    token_id = AccessTokenId(id_of("token_id", request.token_id))
    entry = caller.audit("revoke", f"token/{token_id}", request.request_id)
    done = await _revoke(services, caller, token_id, entry)
    if done is None:
        raise NotFound(
            f"there is no token {cut(request.token_id)}",
            reason="NO_SUCH_TOKEN",
            remedy="see `schedctl auth token list`",
        )
    return _message(done.token, ended_with_it=len(done.with_it))


async def get_identity(
    services: Services, caller: Caller, request: wire.GetIdentityRequest
) -> wire.Identity:
    """Who the caller is, as this member takes them."""
    del services, request
    who = caller.who
    return wire.Identity(
        actor=who.actor,
        grants=[
            wire.Identity.Grant(namespace=namespace, role=wire.Role.ValueType(role))
            for namespace, role in sorted(who.roles.items())
        ],
        expires_at=views.stamp(who.until),
        token_id=str(who.token or ""),
    )


async def log_in(services: Services, caller: Caller) -> tuple[str, timedelta]:
    """The text of a login, and for how long it is good: a token as good as the caller's own, for a
    shorter time. Theirs must be one, for a login ends with the token that it was made by.
    """
    who = caller.who
    assert who.token is not None
    made_by = await services.access_tokens.find(who.token)
    assert made_by is not None
    if made_by.revoked:
        services.authentication.revoked(made_by.id)
        raise ended()
    now = services.clock.now()
    token, text = _drawn(
        replace(
            made_by,
            id=AccessTokenId(uuid4()),
            created_at=now,
            created_by=who.actor,
            expires_at=min(now + SESSION, made_by.expires_at),
            maker=made_by.maker if made_by.login else made_by.id,
            login=True,
        )
    )
    entry = caller.audit("login", f"token/{who.token}")
    after = compact({"login": str(token.id)} | _said(token))
    await _store(services, token, replace(entry, after=after))
    return text, token.expires_at - now


async def log_out(services: Services, caller: Caller) -> None:
    """The login that the caller came by is worth nothing any more, nor is what was made by it."""
    if (token := caller.who.token) is not None:
        entry = caller.audit("logout", f"token/{token}")
        await _revoke(services, caller, token, entry)


async def replace_login(services: Services, text: str, source: str) -> None:
    """A login that its browser has another for is worth nothing any more; what is none, or over,
    stays as it is.
    """
    try:
        who = await services.authentication.of_token(text)
    except Unauthenticated:
        return
    assert who.token is not None
    found = await services.access_tokens.find(who.token)
    if found is not None and found.login:
        await log_out(services, Caller(who, source))


async def _revoke(
    services: Services, caller: Caller, token: AccessTokenId, entry: AuditEntry
) -> Revoked | None:
    """It is worth nothing here whatever comes of it: who asks may never hear that it was done."""
    try:
        return await services.access_tokens.revoke(token, caller.actor, entry, _noted)
    finally:
        services.authentication.revoked(token)


async def _store(services: Services, token: AccessToken, entry: AuditEntry) -> None:
    """Store a new one. Raises Unauthenticated: the one that it is made by was revoked, which this
    member didn't know yet.
    """
    if not await services.access_tokens.create(token, entry):
        if token.maker is not None:
            services.authentication.revoked(token.maker)
        raise ended()


async def _not_too_deep(services: Services, caller: Caller) -> None:
    if caller.who.token is not None:
        maker = await services.access_tokens.find(caller.who.token)
        if maker is not None and len(maker.makers) >= MOST_DEEP:
            raise FailedPrecondition(
                f"your token was made by a token that was made by one, and so on, {MOST_DEEP} deep",
                reason="TOO_MANY_MAKERS",
                remedy="make it with a token that fewer stand above, or with a certificate",
            )


def _drawn(token: AccessToken) -> tuple[AccessToken, str]:
    """It with a secret of its own, and what is sent for it."""
    text, digest = text_of(token.id, secrets.token_bytes(SECRET_BYTES))
    return replace(token, digest=digest), text


def _faults(request: wire.CreateTokenRequest, lifetime: timedelta) -> Iterator[Violation]:
    if not is_name(request.name):
        yield Violation("name", "give whose it is: letters, digits, '.', '_', '@', '+', '-'")
    if not request.role:
        yield Violation("role", "give one of viewer, operator, admin")
    if len(request.namespaces) > MOST_NAMESPACES:
        yield Violation("namespaces", f"are at most {MOST_NAMESPACES}")
    for namespace in request.namespaces[:MOST_NAMESPACES]:
        if namespace != EVERY:
            yield from validation.check_name(namespace, "namespaces")
    if not SHORTEST <= lifetime <= LONGEST:
        yield Violation("lifetime", f"is from a minute to {LONGEST.days} days")


def _maker_ends(caller: Caller) -> datetime | None:
    """When the token ends that the caller came by; None: they came by none."""
    return caller.who.until if caller.who.token is not None else None


def _too_late(asked: timedelta | None, now: datetime, ends: datetime | None) -> Iterator[Violation]:
    """What is wrong with a lifetime that was asked for, by a caller whose own token ends then."""
    if asked is not None and ends is not None and asked > ends - now:
        at = ends.isoformat(timespec="seconds")
        yield Violation("lifetime", f"goes beyond the token that makes it, which ends at {at}")


def _said(token: AccessToken) -> dict[str, object]:
    return {
        "name": token.name,
        "role": token.role.word,
        "namespaces": [*token.namespaces],
        "expires_at": token.expires_at.isoformat(timespec="seconds"),
    }


def _noted(token: AccessToken, with_it: Sequence[AccessTokenId]) -> tuple[str, str]:
    """As the audit has one that is revoked, and what ends with it: never what it is proven by."""
    ids = [str(token_id) for token_id in with_it[:MOST_NOTED]]
    ended = compact({"ended_with_it": len(with_it), "tokens": ids}) if with_it else ""
    return compact(_said(token)), ended


def _message(token: AccessToken, ended_with_it: int = 0) -> wire.Token:
    return wire.Token(
        token_id=str(token.id),
        name=token.name,
        role=wire.Role.ValueType(token.role),
        namespaces=token.namespaces,
        created_at=views.stamp(token.created_at),
        created_by=token.created_by,
        expires_at=views.stamp(token.expires_at),
        revoked_at=views.stamp(token.revoked_at or token.maker_revoked_at),
        revoked_by=token.revoked_by,
        maker_id=str(token.maker or ""),
        ended_with_it=ended_with_it,
    )
