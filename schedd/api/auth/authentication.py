"""Authenticate callers by client certificate or access token.

    token ─▶ its row, cached for FRESH seconds ─▶ secret? expired? revoked? ─▶ Identity
    certificate ─▶ names in it (`core.rights`) ─▶ Identity, until the certificate expires
    stream ─▶ its reader is checked regularly, in memory (`stream_readers`)

Invariants
- A token has priority over a certificate: with an invalid token, the call is rejected. So is a call
  with two tokens.
- This member rejects a token at once after a revocation here, and within FRESH seconds after one
  elsewhere. The same holds for its streams and for tokens created with it. A login that newer ones
  replaced is rejected within FRESH seconds, here too.
- While PostgreSQL doesn't answer, tokens are rejected, except for calls that work without it
  (`lately`: a member's own metrics and the doctor). These accept a token that was verified within
  LATELY and not revoked here since. A later answer of PostgreSQL counts for the next call.
- Only a caller with the token's secret learns that the token expired or was revoked.
- Tokens that this member verified before never wait for unknown ones: LOOKUPS of them are read at a
  time. Unknown tokens share statements, one at a time, so they occupy one database thread at most.
  At most MOST rows are cached; those of unknown tokens are evicted first.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from schedd.api import deadlines
from schedd.api.errors import MemberUnavailableError, UnauthenticatedError, wrong
from schedd.api.runs.stream_readers import TICK, Readers
from schedd.core.auth.rights import (
    ANONYMOUS,
    SCHEME,
    AccessTokenRecord,
    CallerIdentity,
    identity_of,
    parse_token,
)
from schedd.core.ids import AccessTokenId
from schedd.ports import ClusterClock
from schedd.store.access_tokens import AccessTokenStore
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.group_commit import GroupCommit
from schedkit.net.certificates import first_of, listed_names
from schedkit.records import dataclass, replace

# The cached rows of access tokens.
#
# - Of two lookups the one that began later counts. A revocation here overrides all lookups that
#   began before it.
# - At most MOST rows are cached. Unknown ids are evicted first, so requests with invented ids never
#   evict real tokens.

MOST: Final = 4_096

_SINCE: Final = datetime.min.replace(tzinfo=UTC)
"""The revocation time of a token that was revoked here, until its row is read again."""


class TokenCache:
    """The cached rows of one member. Times are in seconds of `boottime`."""

    def __init__(self) -> None:
        self._rows: OrderedDict[AccessTokenId, tuple[float, AccessTokenRecord | None]] = (
            OrderedDict()
        )
        self._revoked: OrderedDict[AccessTokenId, float] = OrderedDict()
        self._revoked_at = -math.inf

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, token: AccessTokenId) -> bool:
        return token in self._rows

    def row(self, token: AccessTokenId) -> AccessTokenRecord | None:
        """Return the cached row; None: it doesn't exist, or wasn't read."""
        return self._rows.get(token, (0.0, None))[1]

    def fresh(self, token: AccessTokenId, since: float) -> bool:
        """Return whether the row was read after `since`, and since the last revocation here."""
        asked, _ = self._rows.get(token, (-math.inf, None))
        return asked > max(self._revoked_at, since)

    def known(self, token: AccessTokenId, since: float) -> bool:
        """Return whether the row existed when it was read, after `since`."""
        asked, row = self._rows.get(token, (-math.inf, None))
        return row is not None and asked > since

    def store_rows(
        self, asked: float, found: Mapping[AccessTokenId, AccessTokenRecord | None]
    ) -> None:
        """Cache the rows that a lookup found. `asked`: when it began."""
        for token, row in found.items():
            if asked < self._rows.get(token, (-math.inf, None))[0]:
                continue
            self._rows[token] = asked, self._judged(row, asked)
            self._rows.move_to_end(token)
            if row is not None and row.revoked:
                self._end(token)
        while len(self._rows) > MOST:
            unknown = (token for token, (_, row) in self._rows.items() if row is None)
            del self._rows[next(unknown, next(iter(self._rows)))]

    def revoked(self, token: AccessTokenId, at: float) -> None:
        """Mark a token that was, or may have been, revoked here, and those created with it."""
        self._revoked_at = at
        self._revoked[token] = at
        self._revoked.move_to_end(token)
        while len(self._revoked) > MOST:
            self._revoked.popitem(last=False)
        self._end(token)

    def _judged(self, row: AccessTokenRecord | None, asked: float) -> AccessTokenRecord | None:
        """Return a row, with the revocations here since its lookup began."""
        if row is None or row.revoked or asked > self._revoked_at:
            return row
        over = any(self._revoked.get(each, -math.inf) >= asked for each in (row.id, *row.makers))
        return _over(row) if over else row

    def _end(self, token: AccessTokenId) -> None:
        for each, (asked, row) in self._rows.items():
            if row is not None and not row.revoked and token in (row.id, *row.makers):
                self._rows[each] = asked, _over(row)


def _over(row: AccessTokenRecord) -> AccessTokenRecord:
    return replace(row, maker_revoked_at=_SINCE)


FRESH: Final = 5.0
"""Seconds for which a cached row is used."""
LATELY: Final = 86_400.0
"""Seconds for which it is used for `lately` calls while PostgreSQL doesn't answer."""
PROMPT: Final = 1.0
"""Seconds that a `lately` call waits for PostgreSQL."""
LOOKUPS: Final = 4
UNKNOWN_AT_ONCE: Final = 256
"""Unknown tokens that one statement looks up."""

BEARER: Final = "bearer "
HOW: Final = (
    "use a client certificate (`schedctl auth issue`) or send a token"
    " (`schedctl auth token create`)"
)
NAMED: Final = (
    f"use a certificate with the URI {SCHEME}user/NAME/ROLE/NAMESPACE, {SCHEME}worker/NAME or"
    f" {SCHEME}member/NAME, all of one subject (`schedctl auth issue`), or send a token"
)
NO_SUBJECT: Final = "CERTIFICATE_WITHOUT_SUBJECT"
"""Reason code for a valid certificate without a name that schedd knows."""


@dataclass(frozen=True, slots=True)
class UnknownSubject:
    """The subject of a valid certificate without a name that schedd knows."""

    uris: str
    """URIs of the certificate, for messages."""


class Authentication:
    """The authentication of one member. `demanded`: callers must authenticate."""

    def __init__(self, store: AccessTokenStore, clock: ClusterClock, *, demanded: bool) -> None:
        self.demanded: Final = demanded
        self._store, self._clock = store, clock
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._rows = TokenCache()
        self._unknown: GroupCommit[AccessTokenId, AccessTokenRecord | None] = GroupCommit(
            self._look_up_unknown, most=UNKNOWN_AT_ONCE
        )
        self._pending: dict[AccessTokenId, asyncio.Task[None]] = {}
        self._certificates: OrderedDict[bytes, CallerIdentity | UnknownSubject] = OrderedDict()
        self.readers: Final = Readers(self._expiry_error, self._refresh)

    async def identify_caller(
        self,
        sent: tuple[str, ...],
        certificate: Callable[[], CallerIdentity | UnknownSubject | None],
        *,
        lately: bool = False,
    ) -> CallerIdentity:
        """Return the identity for these Authorization headers, or else for this certificate.
        `lately`: the call works without PostgreSQL.

        Raises:
            InvalidArgument: more than one header. UnauthenticatedError: no valid credentials.
            MemberUnavailableError, Unavailable: the token can't be looked up.
        """
        if not self.demanded:
            return ANONYMOUS
        if len(sent) > 1:
            raise wrong("Authorization", "the header is given twice: send it once")
        if sent:
            return await self.of_header(sent[0], lately=lately)
        who = certificate()
        if who is None:
            raise _unknown(
                "credentials are missing: send a client certificate or an access token with"
                " the call",
                "NO_CREDENTIALS",
            )
        if isinstance(who, UnknownSubject):
            what = f"the client certificate has no name that schedd knows: {who.uris}"
            raise UnauthenticatedError(what, reason=NO_SUBJECT, remedy=NAMED)
        if who.has_expired(self._clock.now()):
            raise _unknown("the client certificate has expired", "CERTIFICATE_EXPIRED")
        return who

    async def of_header(self, authorization: str, *, lately: bool = False) -> CallerIdentity:
        """Return the identity for `Bearer schedd_…`. Raises what `identify_caller` raises."""
        if authorization[: len(BEARER)].lower() != BEARER:
            raise _unknown(
                "the Authorization header isn't valid: it must be `Bearer TOKEN`", "BAD_TOKEN"
            )
        async with deadlines.limit_read(deadlines.SILENT_FOR):
            return await self.of_token(authorization[len(BEARER) :].strip(), lately=lately)

    def is_verified(self, authorization: str) -> bool:
        """Return whether `Bearer schedd_…` has a token that this member has verified before, and
        that wasn't revoked or expired then.
        """
        if authorization[: len(BEARER)].lower() != BEARER:
            return False
        parts = parse_token(authorization[len(BEARER) :].strip())
        row = None if parts is None else self._rows.row(parts[0])
        return (
            parts is not None
            and row is not None
            and row.is_of(parts[1])
            and self._token_over(row) is None
        )

    def is_certified(self, who: CallerIdentity | UnknownSubject | None) -> bool:
        return isinstance(who, CallerIdentity) and not who.has_expired(self._clock.now())

    async def of_token(self, text: str, *, lately: bool = False) -> CallerIdentity:
        """Return the identity for a token. Raises UnauthenticatedError, Unavailable."""
        parts = parse_token(text)
        token = None if parts is None else await self._stored(*parts, lately=lately)
        if parts is None or token is None or not token.is_of(parts[1]):
            raise _unknown("the access token isn't valid in this cluster", "BAD_TOKEN")
        if (over := self._token_over(token)) is not None:
            raise over
        return token.identity

    async def check(self, who: CallerIdentity) -> None:
        """Raise UnauthenticatedError if credentials expired or were revoked meanwhile."""
        if who.token is not None:
            await self._row(who.token)
        if (over := self._expiry_error(who)) is not None:
            raise over

    def of_certificate(self, pem: bytes, uris: Sequence[str]) -> CallerIdentity | UnknownSubject:
        """Return the subject of a verified certificate. Cached by its bytes."""
        if pem not in self._certificates:
            who = identity_of(uris)
            self._certificates[pem] = (
                UnknownSubject(listed_names(uris))
                if who is None
                else replace(who, until=first_of(pem).not_after)
            )
            while len(self._certificates) > MOST:
                self._certificates.popitem(last=False)
        return self._certificates[pem]

    def revoked(self, token: AccessTokenId) -> None:
        """Reject a token that was, or may have been, revoked here, and those created with it."""
        self._rows.revoked(token, boottime())
        self.readers.revoked()

    def _token_over(self, token: AccessTokenRecord) -> UnauthenticatedError | None:
        if token.revoked:
            return token_revoked_error()
        if token.identity.has_expired(self._clock.now()):
            return _unknown("the access token has expired", "TOKEN_EXPIRED")
        return None

    def _expiry_error(self, who: CallerIdentity) -> UnauthenticatedError | None:
        """Return why credentials aren't valid any more, by the cached rows; None: they are."""
        if who.has_expired(self._clock.now()):
            if who.token is None:
                return _unknown("the client certificate has expired", "CERTIFICATE_EXPIRED")
            return _unknown("the access token has expired", "TOKEN_EXPIRED")
        if who.token is None:
            return None
        if who.token not in self._rows:  # evicted: `_refresh` reads it again
            return None
        if (token := self._rows.row(who.token)) is None:
            return _unknown("the access token was deleted", "BAD_TOKEN")
        return self._token_over(token)

    async def _stored(
        self, token: AccessTokenId, secret: str, *, lately: bool
    ) -> AccessTokenRecord | None:
        """Return the row of a token that was sent, or None if there is none."""
        if self._fresh(token):
            return self._rows.row(token)
        if (row := self._rows.row(token)) is None or not row.is_of(secret):
            return await self._unknown.ask(token)
        return await (self._row_lately(token) if lately else self._row(token))

    async def _row(self, token: AccessTokenId) -> AccessTokenRecord | None:
        if not self._fresh(token):
            async with self._lookups:
                if not self._fresh(token):  # else another call read it meanwhile
                    asked = boottime()
                    found = await self._store.find(token)
                    self._rows.store_rows(asked, {token: found})
        return self._rows.row(token)

    async def _row_lately(self, token: AccessTokenId) -> AccessTokenRecord | None:
        """Return the cached row if PostgreSQL doesn't answer soon. The lookup continues."""
        if self._fresh(token):
            return self._rows.row(token)
        lookup = self._pending.get(token)
        if lookup is None:
            task = asyncio.create_task(self._look_up(token), name="token lookup")
            lookup = self._pending[token] = task
            lookup.add_done_callback(lambda _: self._pending.pop(token))
        await asyncio.wait({lookup}, timeout=PROMPT)
        if self._fresh(token) or self._rows.known(token, boottime() - LATELY):
            return self._rows.row(token)
        return await self._row(token)

    async def _look_up(self, token: AccessTokenId) -> None:
        with suppress(MemberUnavailableError, Unavailable):
            async with deadlines.limit_read(deadlines.SILENT_FOR):
                await self._row(token)

    async def _look_up_unknown(
        self, tokens: Sequence[AccessTokenId]
    ) -> dict[int, AccessTokenRecord | None]:
        asked = boottime()
        found = {row.id: row for row in await self._store.find_all({*tokens})}
        self._rows.store_rows(asked, {token: found.get(token) for token in tokens})
        return dict(enumerate(map(found.get, tokens)))

    async def _refresh(self, tokens: Collection[AccessTokenId]) -> bool:
        """Read the rows of these tokens, unless all stay fresh until the next refresh."""
        if all(self._fresh(token, FRESH - 2 * TICK) for token in tokens):
            return False
        asked = boottime()
        found = {token.id: token for token in await self._store.find_all(tokens)}
        self._rows.store_rows(asked, {token: found.get(token) for token in tokens})
        return True

    def _fresh(self, token: AccessTokenId, within: float | None = None) -> bool:
        """Return whether the cached row was read within FRESH and since a revocation here."""
        return self._rows.fresh(token, boottime() - (FRESH if within is None else within))


def token_revoked_error() -> UnauthenticatedError:
    return _unknown("the access token was revoked", "TOKEN_REVOKED")


def _unknown(what: str, reason: str) -> UnauthenticatedError:
    return UnauthenticatedError(what, reason=reason, remedy=HOW)
