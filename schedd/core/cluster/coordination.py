"""The values of coordination: what a member reads from etcd and what it asks of it.

One idea: a coordination store is a map from keys to entries with one revision that counts its
changes, and every write is a transaction: compare, then do this, otherwise do that. The values
here are shared by the port, the adapter over the real etcd and its simulated twin;
`Compare.holds` is the meaning of a comparison for all of them.

Invariants
- `Listing.entries` is in ascending order of keys, at most one entry a key.
- Revisions grow within one cluster id. After a restore they may go back, or the id changes: no
  one may keep a revision for longer than one listing without looking at `cluster_id`.
- A key that doesn't exist has revisions, version and lease 0; its value equals nothing and
  differs from nothing (as in etcd: a comparison of the value of an absent key never holds).
"""

from __future__ import annotations

import enum
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NewType, TypeAlias

from schedkit.records import dataclass

Revision = NewType("Revision", int)
"""Count of changes of the whole store. Each write transaction has one."""

LeaseId = NewType("LeaseId", int)
"""Name of a lease in etcd, a positive 63-bit number; 0 is "no lease"."""

NO_LEASE: Final = LeaseId(0)


@dataclass(frozen=True, slots=True)
class CoordinationEntry:
    """One key and its current value.

    `create_revision` identifies this creation of the key: it changes when the key is deleted and
    created again. `mod_revision` is its last write; `version` counts its writes from 1.
    """

    key: str
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    version: int = 1
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class Listing:
    """All entries under one prefix at one revision: a consistent state, never a mixture."""

    revision: Revision
    cluster_id: int
    entries: tuple[CoordinationEntry, ...]

    def __iter__(self) -> Iterator[CoordinationEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, key: str) -> CoordinationEntry | None:
        """The entry of this key, None if there is none."""
        at = bisect_left(self.entries, key, key=_key_of)
        found = self.entries[at] if at < len(self.entries) else None
        return found if found is not None and found.key == key else None

    def under(self, prefix: str) -> tuple[CoordinationEntry, ...]:
        """The entries whose key starts with `prefix`, in order."""
        return tuple(entry for entry in self.entries if entry.key.startswith(prefix))


NOTHING_DELETED: Final[Mapping[str, Revision]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Followed:
    """The state of a followed prefix.

    `deleted`: keys whose deletion the current watch reported, with its revision, and which weren't
    created again since; kept for at least a minute. A key that is only missing isn't among them:
    after a restore, keys are missing that weren't deleted.
    """

    listing: Listing
    deleted: Mapping[str, Revision]


def _key_of(entry: CoordinationEntry) -> str:
    return entry.key


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as granted. `ttl` is in seconds and may exceed the one that was asked."""

    id: LeaseId
    ttl: int


class Field(enum.Enum):
    """What of a key a comparison looks at."""

    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VALUE = "value"
    LEASE = "lease"


class Relation(enum.Enum):
    """How a comparison relates the key's field (left) to its operand (right)."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    GREATER = ">"


_RELATIONS: Final[dict[Relation, Callable[[int | bytes, int | bytes], bool]]] = {
    Relation.EQUAL: operator.eq,
    Relation.NOT_EQUAL: operator.ne,
    Relation.LESS: operator.lt,
    Relation.GREATER: operator.gt,
}


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a transaction. Build it by name: `Compare.absent("leader")`."""

    key: str
    field: Field
    relation: Relation
    operand: int | bytes
    of_prefix: bool = False
    """It holds for every key that starts with `key`; of no such key for one that doesn't exist."""

    def __post_init__(self) -> None:
        if isinstance(self.operand, bytes) is not (self.field is Field.VALUE):
            raise TypeError(f"{self.field.value} can't be compared with {self.operand!r}")

    @classmethod
    def absent(cls, key: str) -> Compare:
        """The key doesn't exist."""
        return cls(key, Field.CREATE_REVISION, Relation.EQUAL, 0)

    @classmethod
    def none_under(cls, prefix: str) -> Compare:
        """No key starts with the prefix."""
        return cls(prefix, Field.CREATE_REVISION, Relation.EQUAL, 0, of_prefix=True)

    @classmethod
    def exists(cls, key: str) -> Compare:
        """The key exists, in whatever life."""
        return cls(key, Field.CREATE_REVISION, Relation.GREATER, 0)

    @classmethod
    def created_at(cls, key: str, revision: Revision) -> Compare:
        """The key was created at `revision`, and not created again since."""
        return cls(key, Field.CREATE_REVISION, Relation.EQUAL, revision)

    @classmethod
    def modified_at(cls, key: str, revision: Revision) -> Compare:
        """The last write of the key is the one at `revision`; 0: the key doesn't exist."""
        return cls(key, Field.MOD_REVISION, Relation.EQUAL, revision)

    @classmethod
    def unchanged(cls, entry: CoordinationEntry) -> Compare:
        """The key wasn't written since this entry was read."""
        return cls.modified_at(entry.key, entry.mod_revision)

    @classmethod
    def version_is(cls, key: str, version: int) -> Compare:
        """The key has been written `version` times in its present life; 0: it doesn't exist."""
        return cls(key, Field.VERSION, Relation.EQUAL, version)

    @classmethod
    def value_is(cls, key: str, value: bytes) -> Compare:
        """The key exists and holds exactly this value."""
        return cls(key, Field.VALUE, Relation.EQUAL, value)

    @classmethod
    def held_by(cls, key: str, lease: LeaseId) -> Compare:
        """The key hangs on this lease (with `NO_LEASE`: on none, or it doesn't exist)."""
        return cls(key, Field.LEASE, Relation.EQUAL, lease)

    def holds(self, entry: CoordinationEntry | None) -> bool:
        """Whether the condition holds for the key's present entry (None: the key is absent)."""
        actual = self._actual(entry)
        return actual is not None and _RELATIONS[self.relation](actual, self.operand)

    def _actual(self, entry: CoordinationEntry | None) -> int | bytes | None:
        if entry is None:
            return None if self.field is Field.VALUE else 0
        actual: int | bytes = getattr(entry, self.field.value)
        return actual


@dataclass(frozen=True, slots=True)
class Put:
    """Write the key, and hang it on `lease` (`NO_LEASE`: it stays until deleted)."""

    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the key if it exists."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete every key that starts with `prefix` (never empty: that would be the whole store)."""

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix:
            raise ValueError("an empty prefix would delete every key of the store")


@dataclass(frozen=True, slots=True)
class Get:
    """Read the key within the transaction; the answer stands in `TxnResult.read`."""

    key: str


Op: TypeAlias = Put | Delete | DeletePrefix | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What a transaction did.

    `succeeded`: all comparisons held and `then` was done; else `otherwise` was.
    `revision`: that of the transaction if it wrote anything, so the create revision of a key it
    made; else the store's revision at which it read.
    `read`: answers of the branch's `Get`s, in their order.
    `deleted`: how many keys the branch's deletes removed.
    """

    succeeded: bool
    revision: Revision
    cluster_id: int
    read: tuple[CoordinationEntry | None, ...] = ()
    deleted: int = 0
