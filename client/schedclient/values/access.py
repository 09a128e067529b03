"""Access tokens and identities, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedclient.values.base import Value

MOST_TOLD: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken(Value):
    """One, but not its secret. `role` VIEWER, OPERATOR or ADMIN; `namespaces` `*` for all;
    `maker_id` of the token or login that made it, with which it ends; `ended_with_it` how many
    `revoke_token` took along (MOST_TOLD: as many or more).
    """

    token_id: str
    name: str
    role: str
    namespaces: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None
    revoked_by: str | None
    maker_id: str | None
    ended_with_it: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(Value):
    """One that was just made. `secret` is what is sent, and told this once."""

    token: AccessToken
    secret: str

    def __repr__(self) -> str:
        return f"NewToken({self.token.token_id}, its secret isn't shown)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Value):
    """A role in a namespace; `*`: in all."""

    namespace: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Value):
    """Who the caller is, as the cluster takes them."""

    actor: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None
    token_id: str | None
