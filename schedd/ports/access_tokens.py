"""Access tokens, as they are stored."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from schedd.core.ids import AccessTokenId
from schedd.core.jobs.access_tokens import AccessToken
from schedd.core.runs.model import AuditEntry
from schedkit.records import dataclass

Noted: TypeAlias = Callable[[AccessToken, Sequence[AccessTokenId]], tuple[str, str]]
"""Returns the audit's `before` and `after` for a revoked token and the tokens that end with it."""

MOST_MARKED: Final = 1_000
"""Limit on the listed tokens that end with a revoked token."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """A revoked token and the tokens that ended with it: the first MOST_MARKED, nearest first."""

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
        """Return those that exist, in one read; ended or not."""
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
        """Revoke a token and all tokens created with it, at any depth. Revoking again keeps the
        first time. None: there is no such token.
        """
        ...
