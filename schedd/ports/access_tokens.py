"""Access tokens, as they are stored."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import AccessToken
from schedd.core.runs.model import AuditEntry
from schedkit.records import dataclass

Noted: TypeAlias = Callable[[AccessToken, Sequence[AccessTokenId]], tuple[str, str]]
"""What the audit has of one that is revoked before and after, and of those that end with it."""

MOST_MARKED: Final = 1_000
"""Of those that end with one that is revoked so many are told at most."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """One that is worth nothing any more, and what ended with it just now: the first MOST_MARKED,
    nearest first.
    """

    token: AccessToken
    with_it: Sequence[AccessTokenId]


class AccessTokenStore(Protocol):
    """Each writing call is one transaction with its audit line."""

    async def create(self, token: AccessToken, audit: AuditEntry) -> bool:
        """Whether it was: False, and nothing is written, where its maker was revoked. A login ends
        the oldest ones of its token, where there are very many.
        """
        ...

    async def find(self, token: AccessTokenId) -> AccessToken | None:
        """Whether or not it has ended."""
        ...

    async def find_all(self, tokens: Collection[AccessTokenId]) -> Sequence[AccessToken]:
        """Those of these that there are, in one look; ended or not."""
        ...

    async def list(
        self, after: tuple[datetime, AccessTokenId] | None, limit: int
    ) -> list[AccessToken]:
        """Newest first, past `after` (created_at, id); logins left out."""
        ...

    async def revoke(
        self,
        token: AccessTokenId,
        by: str,
        audit: AuditEntry,
        noted: Noted,
    ) -> Revoked | None:
        """From now on it, and all that was made by it at any depth, is worth nothing; the first
        time stays. None: there is none.
        """
        ...
