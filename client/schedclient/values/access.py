"""Access tokens and identities, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schedclient.values.base import Value

MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken(Value):
    """A token, without its secret. `role`: VIEWER, OPERATOR or ADMIN. `namespaces`: `*` for all.
    `creator_id`: the token or login that created it; this token ends with it.
    `descendants_revoked`: the number of tokens that `revoke_token` revoked with it (MOST_COUNTED:
    as many or more).
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
    creator_id: str | None
    descendants_revoked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(Value):
    """A new token. `secret` is the text that a client sends; the cluster shows it only once."""

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
    """The authenticated caller."""

    actor: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None
    token_id: str | None
