"""What stands in etcd, and the one frozen value that members reason on. Pure.

    leader                          the tenure that leads              lease: that member's
    members/<name>                  who and where, as JSON             lease: that member's
    workers/<id>/<incarnation>      (value: the worker's own affair)   lease: that worker's
    map                             `shard_map`                        no lease
    cluster                         `prefix_owner`                     no lease
    heir                            who is to lead next, as JSON       lease: that member's

Each reading of these keys becomes one `ClusterView`; loops decide on a view and on nothing else,
so that no decision is made on half of one state and half of another.

Invariants
- The map of a view is never of a lower term than that of the view before it.
- A key that can't be read counts as absent and is named in `unreadable`: one stray key under our
  prefix must not stop a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Final, TypeVar
from uuid import UUID

from schedd.core.cluster import etcd_values, prefix_owner
from schedd.core.cluster.coordination import (
    NO_LEASE,
    NOTHING_DELETED,
    CoordinationEntry,
    Listing,
    Revision,
)
from schedd.core.cluster.etcd_values import InvalidValue, flag, number, parsed, shown, text, uuid
from schedd.core.cluster.prefix_owner import CLUSTER, PrefixOwner
from schedd.core.cluster.shard_map import MOST_TERM, NO_MAP, NO_TIMELINE, ShardMap, decode, newer
from schedd.core.ids import IncarnationId, ShardId, TenureId, Term, Timeline
from schedkit.records import dataclass
from schedkit.text import naming

LEADER: Final = "leader"
MAP: Final = "map"
HEIR: Final = "heir"
MEMBERS: Final = "members/"
WORKERS: Final = "workers/"
MOST_WEIGHT: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as it stands under `members/` in etcd.

    `database`: whether it reaches PostgreSQL. `attached`: whether a worker is attached to it.
    """

    name: str
    tenure: TenureId
    grpc: str
    http: str
    weight: int
    version: str
    tzdata: str
    draining: bool
    database: bool = True
    attached: bool = False


@dataclass(frozen=True, slots=True)
class Heir:
    """The request that this tenure becomes the next leader, made in `term`; void in another."""

    tenure: TenureId
    term: Term


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One reading of the cluster: who is there, who leads, who should own what."""

    members: tuple[MemberView, ...]
    leader: TenureId | None
    term: Term
    assigned: Mapping[ShardId, TenureId]
    workers: frozenset[IncarnationId]
    revision: int
    timeline: Timeline = NO_TIMELINE
    unreadable: tuple[str, ...] = ()
    cluster_id: int = 0
    """Of the etcd it was read from."""
    heir: Heir | None = None
    owner: PrefixOwner | None = None
    """The cluster that the prefix belongs to; None: no member claimed it."""
    departed: Mapping[IncarnationId, Revision] = field(default_factory=dict)
    """Workers' keys whose deletion was watched, with its revision (`coordination.Followed`)."""

    def member(self, tenure: TenureId | None) -> MemberView | None:
        """The live member of this tenure."""
        return next((member for member in self.members if member.tenure == tenure), None)

    def restored_since(self, known: ClusterView) -> bool:
        """Whether etcd was restored from a backup between that earlier view and this one."""
        another = known.cluster_id not in (0, self.cluster_id)
        return another or self.revision < known.revision

    @property
    def map(self) -> ShardMap:
        """The leader's map that members follow."""
        return ShardMap(self.term, self.assigned, self.timeline)


EMPTY_VIEW: Final = ClusterView((), None, Term(0), {}, frozenset(), 0)


def member_key(name: str) -> str:
    """The key under which a member of this name registers."""
    return MEMBERS + name


def worker_key(worker: str, incarnation: IncarnationId) -> str:
    """The key that stands while this incarnation of a worker lives."""
    return f"{WORKERS}{worker}/{incarnation}"


def encode_member(member: MemberView) -> bytes:
    """The value of a member's key. Its name is in the key."""
    value = {
        "tenure": str(member.tenure),
        "grpc": member.grpc,
        "http": member.http,
        "weight": member.weight,
        "version": member.version,
        "tzdata": member.tzdata,
        "draining": member.draining,
        "database": member.database,
        "attached": member.attached,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode_member(entry: CoordinationEntry) -> MemberView:
    """The member that registered under this key; fields it doesn't know are left alone.

    Raises:
        Unreadable: the value is none of ours.
    """
    name = entry.key.removeprefix(MEMBERS)

    def decoded(value: bytes) -> MemberView:
        found = parsed(value)
        if not naming.MEMBER.fullmatch(name):
            raise ValueError(f"the name must match {naming.MEMBER.pattern}")
        return MemberView(
            name=name,
            tenure=TenureId(uuid(found["tenure"])),
            grpc=text(found["grpc"]),
            http=text(found["http"]),
            weight=number(found["weight"], 0, MOST_WEIGHT),
            version=text(found["version"]),
            tzdata=text(found["tzdata"]),
            draining=flag(found["draining"]),
            database=flag(found.get("database", True)),
            attached=flag(found.get("attached", False)),
        )

    return etcd_values.read(entry.key, entry.value, "member", decoded)


def encode_leader(tenure: TenureId) -> bytes:
    """The value of the election key."""
    return str(tenure).encode()


def decode_leader(entry: CoordinationEntry) -> TenureId:
    """The tenure that holds the election key.

    Raises:
        Unreadable: the value names none.
    """
    return etcd_values.read(
        entry.key, entry.value, "leader", lambda value: TenureId(uuid(value.decode()))
    )


def encode_heir(heir: Heir) -> bytes:
    """The value of the heir's key."""
    value = {"tenure": str(heir.tenure), "term": heir.term}
    return json.dumps(value, separators=(",", ":")).encode()


def decode_heir(entry: CoordinationEntry) -> Heir:
    """Return the request that the key holds.

    Raises:
        Unreadable: it holds none.
    """
    return etcd_values.read(entry.key, entry.value, "heir", _heir)


def _heir(value: bytes) -> Heir:
    found = parsed(value)
    return Heir(TenureId(uuid(found["tenure"])), Term(number(found["term"], 0, MOST_TERM)))


def members_of(entries: Iterable[CoordinationEntry]) -> tuple[MemberView, ...]:
    """The members registered under these keys, by name; unreadable ones are left out."""
    return tuple(_Reader().all(decode_member, entries))


def view_of(
    listing: Listing,
    known: ClusterView = EMPTY_VIEW,
    deleted: Mapping[str, Revision] = NOTHING_DELETED,
) -> ClusterView:
    """The cluster as of this listing of everything, after the view `known`. `deleted`: keys whose
    deletion was watched.
    """
    reader = _Reader()
    heir = reader.one(decode_heir, listing.get(HEIR))
    owner = reader.one(prefix_owner.decode, listing.get(CLUSTER))
    shard_map = newer(known.map, reader.one(_decode_map, listing.get(MAP)) or NO_MAP)
    return ClusterView(
        members=tuple(reader.all(decode_member, listing.under(MEMBERS))),
        leader=reader.one(_leader, listing.get(LEADER)),
        term=shard_map.term,
        assigned=shard_map.assigned,
        workers=frozenset(reader.all(_incarnation, listing.under(WORKERS))),
        revision=listing.revision,
        timeline=shard_map.timeline,
        unreadable=tuple(reader.unreadable),
        cluster_id=listing.cluster_id,
        heir=heir,
        owner=owner,
        departed=_departed(deleted),
    )


def _leader(entry: CoordinationEntry) -> TenureId:
    if entry.lease == NO_LEASE:
        raise InvalidValue(f"{entry.key}: it has no lease, so no member wrote it")
    return decode_leader(entry)


def _decode_map(entry: CoordinationEntry) -> ShardMap:
    return decode(entry.value)


def incarnation_of(key: str) -> IncarnationId:
    """The incarnation whose key this is.

    Raises:
        Unreadable: it names none.
    """
    try:
        return IncarnationId(UUID(key.rpartition("/")[2]))
    except ValueError as error:
        raise InvalidValue(f"{shown(key)}: not the key of a worker: {error!r}") from error


def _incarnation(entry: CoordinationEntry) -> IncarnationId:
    return incarnation_of(entry.key)


def _departed(deleted: Mapping[str, Revision]) -> dict[IncarnationId, Revision]:
    departed = {}
    for key, revision in deleted.items():
        if key.startswith(WORKERS):
            with suppress(InvalidValue):  # logged when the key was first seen
                departed[incarnation_of(key)] = revision
    return departed


class _Reader:
    """Decodes entries and remembers the keys of those it couldn't."""

    def __init__(self) -> None:
        self.unreadable: list[str] = []

    def one(
        self, decoder: Callable[[CoordinationEntry], T], entry: CoordinationEntry | None
    ) -> T | None:
        if entry is None:
            return None
        try:
            return decoder(entry)
        except InvalidValue:
            self.unreadable.append(entry.key)
            return None

    def all(
        self, decoder: Callable[[CoordinationEntry], T], entries: Iterable[CoordinationEntry]
    ) -> list[T]:
        read = (self.one(decoder, entry) for entry in entries)
        return [value for value in read if value is not None]
