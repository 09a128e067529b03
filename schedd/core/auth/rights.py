"""Identities, their roles per namespace, and how a certificate names them.

    schedd://member/m1               a member of the cluster
    schedd://worker/w1               the worker of this name, and no other
    schedd://worker/w1/billing       the same worker, only for runs of this namespace
    schedd://user/alice/admin/*      a person or program: a role in a namespace, `*`: in all

Invariants
- A role includes the lower roles: viewer < operator < admin.
- Calls on the whole cluster need the role in EVERY.
- A certificate with two names, or with a name in an unknown form, names no identity. A name has no
  query, fragment or port, no encoded characters, and a lowercase scheme.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime, timedelta
from enum import Enum, IntEnum
from typing import Final

from schedd.core.ids import AccessTokenId, Id
from schedkit.records import dataclass

EVERY: Final = "*"
"""All namespaces, and the objects of the whole cluster."""

SCHEME: Final = "schedd://"
_OURS: Final = SCHEME.partition(":")[0]
NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._@+-]{0,126}[A-Za-z0-9])?", re.ASCII)


class Role(IntEnum):
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The role's name in certificates and messages."""
        return self.name.lower()


class IdentityKind(Enum):
    USER = "user"
    WORKER = "worker"
    MEMBER = "member"
    ANYBODY = "anybody"
    """A caller of a member without authentication, or this member itself."""


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """An authenticated caller. `until`: when the authentication ends, if it does."""

    kind: IdentityKind
    name: str
    roles: Mapping[str, Role] = field(default_factory=dict)
    until: datetime | None = None
    token: AccessTokenId | None = None
    works_for: frozenset[str] | None = None
    """The namespaces whose runs a worker may get; None: all."""

    @property
    def actor(self) -> str:
        """The caller's name in the audit log."""
        return self.name if self.kind is IdentityKind.ANYBODY else f"{self.kind.value}/{self.name}"

    def may(self, role: Role, namespace: str) -> bool:
        had = max(self.roles.get(namespace, 0), self.roles.get(EVERY, 0))
        return had >= role

    def may_somewhere(self, role: Role) -> bool:
        return any(had >= role for had in self.roles.values())

    def has_expired(self, now: datetime) -> bool:
        return self.until is not None and self.until <= now


ANONYMOUS: Final = CallerIdentity(IdentityKind.ANYBODY, "anonymous", {EVERY: Role.ADMIN})
"""A caller without authentication: on loopback, or in plain text as the operator configured."""

PAGE: Final = CallerIdentity(IdentityKind.ANYBODY, "page", {EVERY: Role.VIEWER})
"""The member itself, when it reads data that every reader of the page may see."""


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def uri_of(kind: IdentityKind, name: str) -> str:
    return f"{SCHEME}{kind.value}/{name}"


def uris_of_worker(name: str, namespaces: Iterable[str] = ()) -> list[str]:
    """Return the URIs of a worker for its certificate. No namespaces: all."""
    uri = uri_of(IdentityKind.WORKER, name)
    return [f"{uri}/{namespace}" for namespace in namespaces] or [uri]


def uris_of_user(name: str, role: Role, namespaces: Iterable[str]) -> list[str]:
    """Return the URIs of a person or program with this role, for a certificate."""
    return [f"{SCHEME}user/{name}/{role.word}/{namespace}" for namespace in namespaces]


def identity_of(uris: Iterable[str]) -> CallerIdentity | None:
    """Return the identity that a certificate names, or None. Other schemes are ignored."""
    ours = [uri for uri in uris if uri.partition(":")[0].casefold() == _OURS]
    if not all(uri.startswith(SCHEME) for uri in ours):
        return None
    parts = [uri.removeprefix(SCHEME).split("/") for uri in ours]
    if not parts or len({tuple(each[:2]) for each in parts}) > 1:
        return None
    match parts:
        case [[("member" | "worker") as kind, name]] if is_name(name):
            return CallerIdentity(IdentityKind(kind), name)
        case [["worker", name, _], *_] if is_name(name):
            if all(len(each) == 3 and NAMESPACE.fullmatch(each[2]) for each in parts):
                works_for = frozenset(each[2] for each in parts)
                return CallerIdentity(IdentityKind.WORKER, name, works_for=works_for)
        case [["user", name, *_], *_] if is_name(name):
            return _user(name, [each[2:] for each in parts])
    return None


def _user(name: str, granted: Iterable[list[str]]) -> CallerIdentity | None:
    roles: dict[str, Role] = {}
    for each in granted:
        if len(each) != 2 or each[0] not in _ROLES:
            return None
        if each[1] != EVERY and not NAMESPACE.fullmatch(each[1]):
            return None
        role, namespace = _ROLES[each[0]], each[1]
        roles[namespace] = max(role, roles.get(namespace, role))
    return CallerIdentity(IdentityKind.USER, name, roles)


_ROLES: Final = {role.word: role for role in Role}


# Access tokens: the text that a person or program sends, and the digest that is stored.
#
#     schedd_<id: 32 hex digits>_<secret: 256 random bits, in base64url>
#              └ lookup key        └ only its SHA-256 is stored
#
# A digest without salt and stretching is enough for 256 random bits, which can't be guessed. A
# login to the dashboard is a short-lived token that no list shows. A login or token that was
# created with a token ends with it: it expires no later, and is revoked with it.

LIFETIME: Final = timedelta(days=30)
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
