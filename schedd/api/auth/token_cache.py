"""Rows of access tokens, as a member read them last.

    look ─▶ read ─▶ row, of when it was asked for ─▶ fresh? │ known, if not anew?
                     ▲ worth nothing any more: it, or one that made it, was revoked here

Invariants
- Of two looks that one counts that was asked for later, and what was revoked here is so to each
  that was asked for before.
- No more than MOST are remembered; those of ids that nobody has go first, so whoever makes ids up
  drives nobody out.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import AccessToken
from schedkit.records import replace

MOST: Final = 4_096

_SINCE: Final = datetime.min.replace(tzinfo=UTC)
"""When isn't said of what was revoked here: until it is read anew it is worth nothing."""


class Remembered:
    """Those of one member. Instants are `boottime`, but for what rows say."""

    def __init__(self) -> None:
        self._rows: OrderedDict[AccessTokenId, tuple[float, AccessToken | None]] = OrderedDict()
        self._revoked: OrderedDict[AccessTokenId, float] = OrderedDict()
        self._revoked_at = -math.inf

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, token: AccessTokenId) -> bool:
        return token in self._rows

    def row(self, token: AccessTokenId) -> AccessToken | None:
        """As it was read last; None: it isn't there, or wasn't read."""
        return self._rows.get(token, (0.0, None))[1]

    def fresh(self, token: AccessTokenId, since: float) -> bool:
        """Whether it was read since then, and since the last revocation here."""
        asked, _ = self._rows.get(token, (-math.inf, None))
        return asked > max(self._revoked_at, since)

    def known(self, token: AccessTokenId, since: float) -> bool:
        """Whether it was there since then."""
        asked, row = self._rows.get(token, (-math.inf, None))
        return row is not None and asked > since

    def keep(self, asked: float, found: Mapping[AccessTokenId, AccessToken | None]) -> None:
        """What a look found that was asked for then."""
        for token, row in found.items():
            if asked < self._rows.get(token, (-math.inf, None))[0]:
                continue
            self._rows[token] = asked, self._judged(row, asked)
            self._rows.move_to_end(token)
            if row is not None and row.revoked:
                self._end(token)
        while len(self._rows) > MOST:
            nobodys = (token for token, (_, row) in self._rows.items() if row is None)
            del self._rows[next(nobodys, next(iter(self._rows)))]

    def revoked(self, token: AccessTokenId, at: float) -> None:
        """It was, here and then, or may have been: so what was made by it isn't good, either."""
        self._revoked_at = at
        self._revoked[token] = at
        self._revoked.move_to_end(token)
        while len(self._revoked) > MOST:
            self._revoked.popitem(last=False)
        self._end(token)

    def _judged(self, row: AccessToken | None, asked: float) -> AccessToken | None:
        """A row, by what was revoked here since it was asked for."""
        if row is None or row.revoked or asked > self._revoked_at:
            return row
        over = any(self._revoked.get(each, -math.inf) >= asked for each in (row.id, *row.makers))
        return _over(row) if over else row

    def _end(self, token: AccessTokenId) -> None:
        for each, (asked, row) in self._rows.items():
            if row is not None and not row.revoked and token in (row.id, *row.makers):
                self._rows[each] = asked, _over(row)


def _over(row: AccessToken) -> AccessToken:
    return replace(row, maker_revoked_at=_SINCE)
