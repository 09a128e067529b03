"""Access tokens: the text that a person or program sends, and the digest that is stored.

    schedd_<id: 32 hex digits>_<secret: 256 random bits, in base64url>
             └ lookup key        └ only its SHA-256 is stored

A digest without salt and stretching is enough for 256 random bits, which can't be guessed. Salt and
stretching protect passwords, which people choose.

A login to the dashboard is a short-lived token that no list shows. A login or token that was
created with a token ends with it: it expires no later, and is revoked with it.
"""

import base64
import hashlib
import hmac
import re
from datetime import datetime, timedelta
from typing import Final

from schedd.core.auth.rights import CallerIdentity, IdentityKind, Role
from schedd.core.ids import AccessTokenId, Id
from schedkit.records import dataclass

LIFETIME: Final = timedelta(days=30)
"""The default lifetime of a token."""
LONGEST: Final = timedelta(days=366)
SESSION: Final = timedelta(hours=8)
"""The lifetime of a login to the dashboard."""
SECRET_BYTES: Final = 32

_FORM: Final = re.compile(r"schedd_([0-9a-f]{32})_([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True)
class AccessTokenRecord:
    id: AccessTokenId
    digest: bytes
    name: str
    role: Role
    namespaces: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None
    revoked_by: str = ""
    maker: AccessTokenId | None = None
    """The token or login that created it."""
    maker_revoked_at: datetime | None = None
    """When one of `makers` was first revoked."""
    login: bool = False
    makers: tuple[AccessTokenId, ...] = ()
    """The token or login that created it, the creator of that one, and so on."""

    @property
    def identity(self) -> CallerIdentity:
        roles = dict.fromkeys(self.namespaces, self.role)
        return CallerIdentity(IdentityKind.USER, self.name, roles, self.expires_at, self.id)

    @property
    def revoked(self) -> bool:
        """Whether the token or one of `makers` was revoked."""
        return self.revoked_at is not None or self.maker_revoked_at is not None

    def is_of(self, secret: str) -> bool:
        """Return whether this is the token's secret, in constant time."""
        return hmac.compare_digest(self.digest, digest_of(secret))


def text_of(token: AccessTokenId, chance: bytes) -> tuple[str, bytes]:
    """Return the text of a new token and its digest. `chance`: SECRET_BYTES random bytes."""
    secret = base64.urlsafe_b64encode(chance).decode().rstrip("=")
    return f"schedd_{token.hex()}_{secret}", digest_of(secret)


def parse_token(text: str) -> tuple[AccessTokenId, str] | None:
    """Return the id and the secret of a token's text; None: it isn't a valid token."""
    found = _FORM.fullmatch(text)
    return None if found is None else (AccessTokenId(Id.parse(found[1])), found[2])


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
