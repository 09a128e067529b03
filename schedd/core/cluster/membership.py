"""The keys in etcd, and the frozen value on which members decide. Pure.

    leader                          the tenure that leads              lease: that member's
    members/<name>                  identity and addresses, as JSON    lease: that member's
    workers/<id>/<incarnation>      (value: used by `worker_leases`)   lease: that worker's
    map                             `shard_map`                        no lease
    cluster                         `prefix_owner`                     no lease
    heir                            the requested leader, as JSON      lease: that member's

Each reading of these keys becomes one `ClusterView`. Loops decide only on a view, so no decision
mixes two states.

Invariants
- The map of a view never has a lower term than the map of the view before it.
- A key that can't be read counts as absent and is named in `unreadable`. One invalid key under our
  prefix must not stop a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields
from functools import lru_cache
from typing import Final, TypeVar

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
from schedd.core.ids import Id, IncarnationId, ShardId, TenureId, Term, Timeline
from schedkit.records import dataclass
from schedkit.text import naming

LEADER: Final = "leader"
MAP: Final = "map"
HEIR: Final = "heir"
MEMBERS: Final = "members/"
WORKERS: Final = "workers/"
MOST_WEIGHT: Final = 10_000
MOST_CACHED: Final = 20_000
"""Keys of workers whose incarnations are cached."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member as its key shows it. `database`, `attached`: it reaches PostgreSQL, has a worker."""

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
    """A request that this tenure becomes the next leader. It is valid only in `term`."""

    tenure: TenureId
    term: Term


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A reading of the cluster: the members, the leader and the shard map."""

    members: tuple[MemberView, ...]
    leader: TenureId | None
    term: Term
    assigned: Mapping[ShardId, TenureId]
    workers: frozenset[IncarnationId]
    revision: int
    timeline: Timeline = NO_TIMELINE
    unreadable: tuple[str, ...] = ()
    cluster_id: int = 0
    """Id of the etcd cluster that the view was read from."""
    heir: Heir | None = None
    owner: PrefixOwner | None = None
    """The cluster that the prefix belongs to; None: no member claimed it."""
    departed: Mapping[IncarnationId, Revision] = field(default_factory=dict)
    """Workers' keys whose deletion was watched, with its revision (`coordination.Followed`)."""

    def member(self, tenure: TenureId | None) -> MemberView | None:
        """Return the live member of this tenure; None: there is none."""
        return next((member for member in self.members if member.tenure == tenure), None)

    def restored_since(self, known: ClusterView) -> bool:
        """Return whether etcd was restored from a backup between the view `known` and this one."""
        another = known.cluster_id not in (0, self.cluster_id)
        return another or self.revision < known.revision

    @property
    def map(self) -> ShardMap:
        """The leader's map that members follow."""
        return ShardMap(self.term, self.assigned, self.timeline)


EMPTY_VIEW: Final = ClusterView((), None, Term(0), {}, frozenset(), 0)


def member_key(name: str) -> str:
    return MEMBERS + name


def worker_key(worker: str, incarnation: IncarnationId) -> str:
    """Return the key of a worker's incarnation, which exists while the incarnation's lease does."""
    return f"{WORKERS}{worker}/{incarnation}"


def encode_member(member: MemberView) -> bytes:
    """Return the value of a member's key. The name is in the key."""
    value = {each.name: getattr(member, each.name) for each in fields(member)}
    del value["name"]
    return etcd_values.encoded(value)


def decode_member(entry: CoordinationEntry) -> MemberView:
    """Return the member that registered under this key. Raises InvalidValue."""
    name = entry.key.removeprefix(MEMBERS)

    def decoded(value: bytes) -> MemberView:
        found = parsed(value)
        if not naming.MEMBER.fullmatch(name):
            raise ValueError(
                f"member name {shown(name)} must match the pattern {naming.MEMBER.pattern}:"
                " rename the member"
            )
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
    return str(tenure).encode()


def decode_leader(entry: CoordinationEntry) -> TenureId:
    """Return the tenure that holds the election key. Raises InvalidValue."""
    return etcd_values.read(
        entry.key, entry.value, "leader", lambda value: TenureId(uuid(value.decode()))
    )


def encode_heir(heir: Heir) -> bytes:
    return etcd_values.encoded({"tenure": heir.tenure, "term": heir.term})


def decode_heir(entry: CoordinationEntry) -> Heir:
    """Return the request that the key holds. Raises InvalidValue."""

    def decoded(value: bytes) -> Heir:
        found = parsed(value)
        return Heir(TenureId(uuid(found["tenure"])), Term(number(found["term"], 0, MOST_TERM)))

    return etcd_values.read(entry.key, entry.value, "heir", decoded)


def members_of(entries: Iterable[CoordinationEntry]) -> tuple[MemberView, ...]:
    """Return the members registered under these keys, by name; unreadable ones are left out."""
    return tuple(_Reader().all(decode_member, entries))


def view_of(
    listing: Listing,
    known: ClusterView = EMPTY_VIEW,
    deleted: Mapping[str, Revision] = NOTHING_DELETED,
) -> ClusterView:
    """Return the cluster as of this listing of all keys. `deleted`: keys whose deletion was
    watched.
    """
    reader = _Reader()
    heir = reader.one(decode_heir, listing.get(HEIR))
    owner = reader.one(prefix_owner.decode, listing.get(CLUSTER))
    seen = reader.one(lambda entry: decode(entry.value), listing.get(MAP))
    shard_map = newer(known.map, seen or NO_MAP)
    departed = {}
    for key, revision in deleted.items():
        if key.startswith(WORKERS):
            with suppress(InvalidValue):  # logged when the key was first seen
                departed[incarnation_of(key)] = revision
    return ClusterView(
        members=tuple(reader.all(decode_member, listing.entries_under(MEMBERS))),
        leader=reader.one(_leader, listing.get(LEADER)),
        term=shard_map.term,
        assigned=shard_map.assigned,
        workers=frozenset(
            reader.all(lambda entry: incarnation_of(entry.key), listing.entries_under(WORKERS))
        ),
        revision=listing.revision,
        timeline=shard_map.timeline,
        unreadable=tuple(reader.unreadable),
        cluster_id=listing.cluster_id,
        heir=heir,
        owner=owner,
        departed=departed,
    )


def _leader(entry: CoordinationEntry) -> TenureId:
    if entry.lease == NO_LEASE:
        raise InvalidValue(
            f"etcd key {entry.key} isn't valid: the key has no lease, so no member wrote it;"
            " members delete it"
        )
    return decode_leader(entry)


@lru_cache(maxsize=MOST_CACHED)
def incarnation_of(key: str) -> IncarnationId:
    """Return the incarnation of a worker's key, which each change of another key asks for again.
    Raises InvalidValue.
    """
    try:
        return IncarnationId(Id.parse(key.rpartition("/")[2]))
    except ValueError as error:
        raise InvalidValue(
            f"etcd key {shown(key)} doesn't end with the id of a worker's incarnation:"
            f" {error}; see `schedctl cluster doctor`"
        ) from error


@dataclass(slots=True)
class _Reader:
    """A decoder of entries that collects the keys of unreadable ones."""

    unreadable: list[str] = field(default_factory=list)

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
