"""Who calls: by the certificate that they showed, or by the access token that they sent.

    token ─▶ its row, `remembered` for FRESH seconds ─▶ secret? ended? revoked? ─▶ Identity
    certificate ─▶ names in it (`core.rights`) ─▶ Identity, until the certificate ends
    stream ─▶ its reader is asked about again and again, in memory (`readers`)

Invariants
- A token that is sent is judged, whatever certificate comes with it: a wrong one isn't passed by.
  Of two it isn't guessed which is meant.
- A revoked token is worth nothing FRESH seconds later, on whichever member; here, at once. So is
  a stream that it opened, and what was made by it. A login that newer ones ended has FRESH here,
  too.
- While PostgreSQL says nothing, nobody is known by a token but for what needs none of it (`lately`:
  a member's own figures and the doctor, which tell that it is away): who was known LATELY, and
  isn't known here to have been revoked since. One that answers later than that is heard all the
  same, by the next who asks.
- That a token has ended or was revoked is told to who knows its secret alone.
- Tokens that this member has verified before never wait for unknown ones: LOOKS of them are read
  at a time, and unknown tokens share one statement at a time (`token_lookups`). Rows of at
  most MOST tokens are kept; those of unknown tokens are forgotten first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from schedd.api import deadlines
from schedd.api.auth.token_cache import MOST, Remembered
from schedd.api.auth.token_lookups import TokenLookups
from schedd.api.errors import OutOfTouch, Unauthenticated, wrong
from schedd.api.runs.stream_readers import TICK, Readers
from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import AccessToken, read
from schedd.core.jobs.rights import ANONYMOUS, SCHEME, Identity, identity_of
from schedd.ports import AccessTokenStore, ClusterClock
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.net.certificates import listed_names, not_after
from schedkit.tasks import Loop

T = TypeVar("T")

FRESH: Final = 5.0
"""Seconds for which a row that was read stands for what is stored."""
LATELY: Final = 86_400.0
"""Seconds for which it does where PostgreSQL says nothing, for who reads what needs none of it."""
PROMPT: Final = 1.0
"""Seconds that those wait for its answer: it is then that they are to be told so."""
LOOKS: Final = 4

BEARER: Final = "bearer "
HOW: Final = (
    "show a certificate (`schedctl auth issue`) or send a token (`schedctl auth token create`)"
)
NAMED: Final = (
    f"show one with the URI {SCHEME}user/NAME/ROLE/NAMESPACE, {SCHEME}worker/NAME or"
    f" {SCHEME}member/NAME, and of one subject alone (`schedctl auth issue`), or send a token"
)
NAMES_NOBODY: Final = "CERTIFICATE_NAMES_NOBODY"
"""Why somebody is refused whose certificate is good, and says nothing that schedd understands."""


@dataclass(frozen=True, slots=True)
class Nobody:
    """Whom a certificate names that is good, and says nothing that schedd understands."""

    uris: str
    """As they are told."""


class Authentication:
    """Of one member. `demanded`: whether anybody is asked who they are."""

    def __init__(self, store: AccessTokenStore, clock: ClusterClock, *, demanded: bool) -> None:
        self.demanded: Final = demanded
        self._store, self._clock = store, clock
        self._looks = asyncio.Semaphore(LOOKS)
        self._rows = Remembered()
        self._unknown = TokenLookups(store, self._rows.keep)
        self._looking: dict[AccessTokenId, asyncio.Task[None]] = {}
        self._certificates: OrderedDict[bytes, Identity | Nobody] = OrderedDict()
        self._readers = Readers(self._over, self._refresh)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """To be run as long as anything is streamed."""
        return self._readers.loops

    async def of(
        self,
        sent: tuple[str, ...],
        certificate: Callable[[], Identity | Nobody | None],
        *,
        lately: bool = False,
    ) -> Identity:
        """Who sent this header (all that came of it), or else showed this certificate. `lately`:
        for what needs no PostgreSQL.

        Raises:
            InvalidArgument: it came more than once. Unauthenticated: nobody that is known.
            OutOfTouch, Unavailable: the token can't be looked up.
        """
        if not self.demanded:
            return ANONYMOUS
        if len(sent) > 1:
            raise wrong("Authorization", "is given twice")
        if sent:
            return await self.of_header(sent[0], lately=lately)
        who = certificate()
        if who is None:
            raise _unknown("it isn't known who calls", "NO_CREDENTIALS")
        if isinstance(who, Nobody):
            what = f"a certificate was shown, but it names nobody that schedd knows: {who.uris}"
            raise Unauthenticated(what, reason=NAMES_NOBODY, remedy=NAMED)
        if who.ended(self._clock.now()):
            raise _unknown("the certificate has ended", "CERTIFICATE_EXPIRED")
        return who

    async def of_header(self, authorization: str, *, lately: bool = False) -> Identity:
        """Who is meant by `Bearer schedd_…`. Raises Unauthenticated, OutOfTouch, Unavailable."""
        if authorization[: len(BEARER)].lower() != BEARER:
            raise _unknown("authorization isn't `Bearer` and a token", "BAD_TOKEN")
        async with deadlines.read(deadlines.SILENT_FOR):
            return await self.of_token(authorization[len(BEARER) :].strip(), lately=lately)

    async def of_token(self, text: str, *, lately: bool = False) -> Identity:
        """Whose token this is. Raises Unauthenticated, Unavailable."""
        parts = read(text)
        token = None if parts is None else await self._stored(*parts, lately=lately)
        if parts is None or token is None or not token.is_of(parts[1]):
            raise _unknown("the token isn't one of this cluster's", "BAD_TOKEN")
        return self._living(token)

    async def still(self, who: Identity) -> None:
        """Raise Unauthenticated where what somebody was known by is over: for what lasts."""
        if who.token is not None:
            await self._row(who.token)
        if (over := self._over(who)) is not None:
            raise over

    def until_over(self, who: Identity, items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """These, for as long as `still` would say nothing: it raises the same where there is no
        item, too. To be closed by who reads it.
        """
        return self._readers.until_over(who, items)

    def of_certificate(self, pem: bytes, uris: Sequence[str]) -> Identity | Nobody:
        """Whom a certificate that was verified names. Remembered by its bytes."""
        if pem not in self._certificates:
            who = identity_of(uris)
            self._certificates[pem] = (
                Nobody(listed_names(uris)) if who is None else replace(who, until=not_after(pem))
            )
            while len(self._certificates) > MOST:
                self._certificates.popitem(last=False)
        return self._certificates[pem]

    def revoked(self, token: AccessTokenId) -> None:
        """It was, here, or may have been: so what was made by it is worth nothing, either."""
        self._rows.revoked(token, boottime())
        self._readers.revoked()

    def _living(self, token: AccessToken) -> Identity:
        if (over := self._token_over(token)) is not None:
            raise over
        return token.identity

    def _token_over(self, token: AccessToken) -> Unauthenticated | None:
        if token.revoked:
            return ended()
        if token.identity.ended(self._clock.now()):
            return _unknown("the token has expired", "TOKEN_EXPIRED")
        return None

    def _over(self, who: Identity) -> Unauthenticated | None:
        """Why what somebody was known by is worth nothing any more, by what is in memory."""
        if who.token is None:
            ended = who.ended(self._clock.now())
            return _unknown("the certificate has ended", "CERTIFICATE_EXPIRED") if ended else None
        if who.ended(self._clock.now()):
            return _unknown("the token has expired", "TOKEN_EXPIRED")
        if who.token not in self._rows:  # forgotten: `_refresh` asks for it again
            return None
        if (token := self._rows.row(who.token)) is None:
            return _unknown("the token isn't there any more", "BAD_TOKEN")
        return self._token_over(token)

    async def _stored(
        self, token: AccessTokenId, secret: str, *, lately: bool
    ) -> AccessToken | None:
        """Return the row of a token that was sent, or None if there is none."""
        if self._fresh(token):
            return self._rows.row(token)
        if (row := self._rows.row(token)) is None or not row.is_of(secret):
            return await self._unknown.row(token)
        return await (self._row_lately(token) if lately else self._row(token))

    async def _row(self, token: AccessTokenId) -> AccessToken | None:
        if not self._fresh(token):
            async with self._looks:
                if not self._fresh(token):  # somebody looked meanwhile
                    asked = boottime()
                    found = await self._store.find(token)
                    self._rows.keep(asked, {token: found})
        return self._rows.row(token)

    async def _row_lately(self, token: AccessTokenId) -> AccessToken | None:
        """As it was read last, where PostgreSQL doesn't say in time how it stands. The look goes
        on: what it finds counts for the next who asks.
        """
        if self._fresh(token):
            return self._rows.row(token)
        look = self._looking.get(token)
        if look is None:
            look = self._looking[token] = asyncio.create_task(self._look(token), name="a token")
            look.add_done_callback(lambda _: self._looking.pop(token))
        await asyncio.wait({look}, timeout=PROMPT)
        if self._fresh(token) or self._rows.known(token, boottime() - LATELY):
            return self._rows.row(token)
        return await self._row(token)

    async def _look(self, token: AccessTokenId) -> None:
        with suppress(OutOfTouch, Unavailable):
            async with deadlines.read(deadlines.SILENT_FOR):
                await self._row(token)

    async def _refresh(self, tokens: Collection[AccessTokenId]) -> bool:
        """Read the rows of all of these, unless each is fresh until the next such look has had its
        time.
        """
        if all(self._fresh(token, FRESH - 2 * TICK) for token in tokens):
            return False
        asked = boottime()
        found = {token.id: token for token in await self._store.find_all(tokens)}
        self._rows.keep(asked, {token: found.get(token) for token in tokens})
        return True

    def _fresh(self, token: AccessTokenId, within: float | None = None) -> bool:
        """Whether what is known of it was read lately, and since the last revocation here."""
        return self._rows.fresh(token, boottime() - (FRESH if within is None else within))


def ended() -> Unauthenticated:
    """That a token is worth nothing any more."""
    return _unknown("the token was revoked", "TOKEN_REVOKED")


def _unknown(what: str, reason: str) -> Unauthenticated:
    return Unauthenticated(what, reason=reason, remedy=HOW)
