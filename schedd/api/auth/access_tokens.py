"""Calls on access tokens, on logins (short-lived tokens), and on the caller's identity."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from schedd.api import paging, views
from schedd.api.auth.authentication import token_revoked_error
from schedd.api.definitions import validation
from schedd.api.errors import (
    FailedPreconditionError,
    FieldViolation,
    UnauthenticatedError,
    cut,
    not_found,
    refuse,
)
from schedd.api.request_bounds import id_of
from schedd.api.services import Caller, Services, compact
from schedd.core.auth.rights import (
    EVERY,
    LIFETIME,
    LONGEST,
    SECRET_BYTES,
    SESSION,
    AccessTokenRecord,
    Role,
    is_name,
    text_of,
)
from schedd.core.ids import AccessTokenId, new_id
from schedd.core.runs.model import AuditRecord
from schedd.store.access_tokens import Revoked
from schedproto.v1 import auth_service_pb2 as wire

MOST_NAMESPACES: Final = 100
SHORTEST: Final = timedelta(minutes=1)
MOST_DEEP: Final = 32
"""Ancestors of a token, all of which each lookup reads."""
MOST_NOTED: Final = 100
"""Ids of descendants that the audit line of a revocation lists, beside their number."""


async def create_token(
    services: Services, caller: Caller, request: wire.CreateTokenRequest
) -> wire.CreateTokenResponse:
    """Create a token. Its text is returned only here. It ends with the token that created it."""
    now = services.clock.now()
    asked = request.lifetime.ToTimedelta() if request.HasField("lifetime") else None
    ends = caller.who.until if caller.who.token is not None else None
    lifetime = LIFETIME if asked is None else asked
    faults = [*_faults(request, lifetime)]
    if asked is not None and ends is not None and asked > ends - now:
        at = ends.isoformat(timespec="seconds")
        problem = f"is longer than the lifetime of your own token, which expires at {at}"
        faults.append(FieldViolation("lifetime", problem))
    refuse(faults, "INVALID_TOKEN")
    own = caller.who.token
    maker = None if own is None else await services.access_tokens.find(own)
    if maker is not None and len(maker.makers) >= MOST_DEEP:
        raise FailedPreconditionError(
            "your access token can't create access tokens: your token is number"
            f" {MOST_DEEP + 1} of a chain in which each token was created with the token"
            " before it",
            reason="TOO_MANY_CREATORS",
            remedy="create the token with an earlier token of the chain, or with a certificate",
        )
    token, text = _drawn(
        AccessTokenRecord(
            id=AccessTokenId(new_id()),
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
    await _store(services, token, replace(entry, after=compact(_audit_fields(token))))
    return wire.CreateTokenResponse(token=_message(token), secret=text)


async def list_tokens(
    services: Services, _caller: Caller, request: wire.ListTokensRequest
) -> wire.ListTokensResponse:
    """Return a page of tokens, newest first."""
    paged = paging.Paged("tokens", request, paging.time_and(AccessTokenId))
    rows = await services.access_tokens.list(paged.after, paged.read_rows)
    page, next_page = paged.cut(rows, lambda row: (row.created_at, row.id))
    return wire.ListTokensResponse(
        tokens=[_message(token) for token in page], next_page_token=next_page
    )


async def revoke_token(
    services: Services, caller: Caller, request: wire.RevokeTokenRequest
) -> wire.Token:
    """Revoke a token and all tokens created with it."""
    token_id = AccessTokenId(id_of("token_id", request.token_id))
    entry = caller.audit("revoke", f"token/{token_id}", request.request_id)
    done = await _revoke(services, caller, token_id, entry)
    if done is None:
        raise not_found("access token", cut(request.token_id), "auth token list")
    return _message(done.token, descendants_revoked=len(done.with_it))


async def get_identity(
    _services: Services, caller: Caller, _request: wire.GetIdentityRequest
) -> wire.Identity:
    """Return the caller's identity and roles."""
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
    """Create a login and return its text and lifetime. A login is a token with the caller's roles
    and a shorter lifetime. It ends with the caller's token, so the caller must have one.
    """
    who = caller.who
    assert who.token is not None
    made_by = await services.access_tokens.find(who.token)
    assert made_by is not None
    if made_by.revoked:
        services.authentication.revoked(made_by.id)
        raise token_revoked_error()
    now = services.clock.now()
    token, text = _drawn(
        replace(
            made_by,
            id=AccessTokenId(new_id()),
            created_at=now,
            created_by=who.actor,
            expires_at=min(now + SESSION, made_by.expires_at),
            maker=made_by.maker if made_by.login else made_by.id,
            login=True,
        )
    )
    entry = caller.audit("login", f"token/{who.token}")
    after = compact({"login": str(token.id)} | _audit_fields(token))
    await _store(services, token, replace(entry, after=after))
    return text, token.expires_at - now


async def log_out(services: Services, caller: Caller) -> None:
    """Revoke the caller's login and all tokens created with it."""
    if (token := caller.who.token) is not None:
        entry = caller.audit("logout", f"token/{token}")
        await _revoke(services, caller, token, entry)


async def replace_login(services: Services, text: str, source: str) -> None:
    """Revoke a login that its browser replaced. Other tokens, and expired logins, are kept."""
    try:
        who = await services.authentication.of_token(text)
    except UnauthenticatedError:
        return
    assert who.token is not None
    found = await services.access_tokens.find(who.token)
    if found is not None and found.login:
        await log_out(services, Caller(who, source))


async def _revoke(
    services: Services, caller: Caller, token: AccessTokenId, entry: AuditRecord
) -> Revoked | None:
    """Revoke the token. This member rejects it also if the outcome is unknown."""
    try:
        return await services.access_tokens.revoke(token, caller.actor, entry, _noted)
    finally:
        services.authentication.revoked(token)


async def _store(services: Services, token: AccessTokenRecord, entry: AuditRecord) -> None:
    """Store a new token. Raises UnauthenticatedError if its parent was revoked meanwhile."""
    if not await services.access_tokens.create(token, entry):
        if token.maker is not None:
            services.authentication.revoked(token.maker)
        raise token_revoked_error()


def _drawn(token: AccessTokenRecord) -> tuple[AccessTokenRecord, str]:
    """Return the token with a new secret, and the text that its owner sends."""
    text, digest = text_of(token.id, secrets.token_bytes(SECRET_BYTES))
    return replace(token, digest=digest), text


def _faults(request: wire.CreateTokenRequest, lifetime: timedelta) -> Iterator[FieldViolation]:
    if not is_name(request.name):
        yield FieldViolation(
            "name",
            "isn't valid: give the owner's name, of letters, digits, '.', '_', '@', '+' and '-'",
        )
    if not request.role:
        yield FieldViolation("role", "is missing: give viewer, operator or admin")
    if len(request.namespaces) > MOST_NAMESPACES:
        yield FieldViolation("namespaces", f"has more than {MOST_NAMESPACES} entries")
    for namespace in request.namespaces[:MOST_NAMESPACES]:
        if namespace != EVERY:
            yield from validation.check_name(namespace, "namespaces")
    if not SHORTEST <= lifetime <= LONGEST:
        yield FieldViolation("lifetime", f"must be from 1 minute to {LONGEST.days} days")


def _audit_fields(token: AccessTokenRecord) -> dict[str, object]:
    return {
        "name": token.name,
        "role": token.role.word,
        "namespaces": [*token.namespaces],
        "expires_at": token.expires_at.isoformat(timespec="seconds"),
    }


def _noted(token: AccessTokenRecord, with_it: Sequence[AccessTokenId]) -> tuple[str, str]:
    """Return a revoked token and its descendants, for the audit log: never a secret."""
    ids = [str(token_id) for token_id in with_it[:MOST_NOTED]]
    ended = compact({"descendants_revoked": len(with_it), "tokens": ids}) if with_it else ""
    return compact(_audit_fields(token)), ended


def _message(token: AccessTokenRecord, descendants_revoked: int = 0) -> wire.Token:
    return views.filled(
        wire.Token,
        token,
        token_id=str(token.id),
        revoked_at=views.stamp(token.revoked_at or token.maker_revoked_at),
        creator_id=str(token.maker or ""),
        descendants_revoked=descendants_revoked,
    )
