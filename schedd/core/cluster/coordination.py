"""The values of coordination: what a member reads from etcd and requests from it.

A coordination store is a map from keys to entries, with one revision that counts its changes. Every
write is a transaction: compare, then do `then`, otherwise do `otherwise`. The port, the adapter
over the real etcd and its simulation share these values. `Compare.holds` defines comparisons for
all of them.

Invariants
- `Listing.entries` is in ascending order of keys, with at most one entry a key.
- Revisions grow within one cluster id. After a restore they may decrease, or the id changes. So a
  revision may be kept beyond one listing only together with a check of `cluster_id`.
- A key that doesn't exist has revisions, version and lease 0. Any comparison of its value is false,
  as in etcd.
"""

from __future__ import annotations

import enum
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NewType, TypeAlias

from schedkit.records import dataclass

Revision = NewType("Revision", int)
"""Count of changes of the whole store. Each write transaction has one."""

LeaseId = NewType("LeaseId", int)
"""Id of a lease in etcd, a positive 63-bit number; 0 is "no lease"."""

NO_LEASE: Final = LeaseId(0)


@dataclass(frozen=True, slots=True)
class CoordinationEntry:
    """A key and its current value. `create_revision` identifies this creation of the key: it
    changes when the key is deleted and created again. `mod_revision` is its last write; `version`
    counts its writes from 1.
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
        """Return the entry of this key; None if the key doesn't exist."""
        at = bisect_left(self.entries, key, key=attrgetter("key"))
        found = self.entries[at] if at < len(self.entries) else None
        return found if found is not None and found.key == key else None

    def entries_under(self, prefix: str) -> tuple[CoordinationEntry, ...]:
        """Return the entries whose key starts with `prefix`, in order."""
        return tuple(entry for entry in self.entries if entry.key.startswith(prefix))


NOTHING_DELETED: Final[Mapping[str, Revision]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Followed:
    """The state of a followed prefix. `deleted`: keys whose deletion the current watch reported,
    with its revision. Deletions are kept for at least a minute. A key that was created again isn't
    included, nor one that is only missing: after a restore, keys may be missing.
    """

    listing: Listing
    deleted: Mapping[str, Revision]


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as granted. `ttl`: seconds; it may exceed the requested TTL."""

    id: LeaseId
    ttl: int


class Field(enum.Enum):
    VERSION = "version"
    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VALUE = "value"


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
    """A condition of a transaction. Create it by name: `Compare.absent("leader")`."""

    key: str
    field: Field
    relation: Relation
    operand: int | bytes
    of_prefix: bool = False
    """Whether the condition must hold for every key that starts with `key`; if there is none, as
    for a key that doesn't exist.
    """

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
        """The key exists, whenever it was created."""
        return cls(key, Field.CREATE_REVISION, Relation.GREATER, 0)

    @classmethod
    def created_at(cls, key: str, revision: Revision) -> Compare:
        """The key was created at `revision`, and not created again since."""
        return cls(key, Field.CREATE_REVISION, Relation.EQUAL, revision)

    @classmethod
    def modified_at(cls, key: str, revision: Revision) -> Compare:
        """The last write of the key is the write at `revision`; 0: the key doesn't exist."""
        return cls(key, Field.MOD_REVISION, Relation.EQUAL, revision)

    @classmethod
    def unchanged(cls, entry: CoordinationEntry) -> Compare:
        """The key wasn't written since this entry was read."""
        return cls.modified_at(entry.key, entry.mod_revision)

    @classmethod
    def version_is(cls, key: str, version: int) -> Compare:
        """The key has been written `version` times since it was created; 0: it doesn't exist."""
        return cls(key, Field.VERSION, Relation.EQUAL, version)

    @classmethod
    def value_is(cls, key: str, value: bytes) -> Compare:
        """The key exists and holds exactly this value."""
        return cls(key, Field.VALUE, Relation.EQUAL, value)

    def holds(self, entry: CoordinationEntry | None) -> bool:
        """Return whether the condition holds for the key's current entry. None: no such key."""
        if entry is None and self.field is Field.VALUE:
            return False
        return _RELATIONS[self.relation](getattr(entry, self.field.value, 0), self.operand)


@dataclass(frozen=True, slots=True)
class Put:
    """Write the key, and attach it to `lease` (`NO_LEASE`: the key stays until deleted)."""

    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Delete every key that starts with `prefix`. It may not be empty: that is the whole store."""

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix:
            raise ValueError(
                "the etcd prefix is empty: a deletion under an empty prefix would delete every"
                " key of etcd; set etcd.prefix"
            )


@dataclass(frozen=True, slots=True)
class Get:
    """Read the key within the transaction; the entry is in `TxnResult.read`."""

    key: str


Op: TypeAlias = Put | Delete | DeletePrefix | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    succeeded: bool
    """All comparisons held, and `then` was done; otherwise `otherwise` was."""
    revision: Revision
    """The transaction's own if it wrote anything, so the create revision of a key that it created.
    Else the revision at which it read.
    """
    cluster_id: int
    read: tuple[CoordinationEntry | None, ...] = ()
    """Answers of the branch's `Get`s, in their order."""
    deleted: int = 0
