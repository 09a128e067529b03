"""Access tokens, as they are stored."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.access_tokens import AccessToken
from schedd.core.ids import AccessTokenId
from schedd.core.model import AuditEntry


class AccessTokenStore(Protocol):
    """Each writing call is one transaction with its audit line."""

    async def create(self, token: AccessToken, audit: AuditEntry) -> None: ...

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
        noted: Callable[[AccessToken], str],
    ) -> AccessToken | None:
        """From now on it, and what was made by it, is worth nothing; the first time stays. None:
        there is none. `noted`: what the audit has of what went.
        """
        ...
