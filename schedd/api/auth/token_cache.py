"""The cache of a member for rows of access tokens.

    lookup ─▶ row, with the time at which the lookup began ─▶ fresh? known?
               ▲ revoked: this token, or an ancestor, was revoked here

Invariants
- Of two lookups the one that began later counts. A revocation here overrides all lookups that began
  before it.
- At most MOST rows are cached. Unknown ids are evicted first, so requests with invented ids never
  evict real tokens.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from schedd.core.auth.access_tokens import AccessTokenRecord
from schedd.core.ids import AccessTokenId
from schedkit.records import replace

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
