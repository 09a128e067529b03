"""The state under a prefix after each change, whatever happens to etcd meanwhile.

    list ─→ watch from revision + 1 ─→ changes ─→ the new state, and again
      ↑         ├─ ended, refused, compacted, no answer to a progress request ───┐
      │         ├─ a change that contradicts the known state                     │
      │         └─ every minute, in case an event was lost                       │
      └────────────────────────── backoff ←──────────────────────────────────────┘

Each doubt leads to a new list, and not to a watch from the last revision. That costs one read. It
is correct even after a restore, when etcd may have the same revision with another history.

Invariants
- A state is shown only if it differs from the one shown before it.
- A deletion is reported only as an event of an unbroken watch. A watch that breaks discards its
  deletions at once. Listing again without an error doesn't break a watch.
- Silence never counts as "no changes". An idle watch gets a progress request. If it doesn't answer
  within the call's deadline, the watch and its endpoint are given up.
- A member of etcd that has lost its leader ends the watch (`hasleader`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import Final, NoReturn, TypeAlias

from schedd.core.cluster.coordination import (
    NOTHING_DELETED,
    CoordinationEntry,
    Followed,
    Listing,
    Revision,
)
from schedd.etcd import wire_pb2 as wire
from schedd.etcd.codec import WATCH, Codec
from schedd.etcd.connection import EtcdConnection, EtcdStream
from schedd.etcd.errors import RevisionGone
from schedkit.backoff import Backoff
from schedkit.errors import Unavailable
from schedkit.records import dataclass

# A prefix as of one revision, kept by a listing and the changes after it. Pure.
#
#     listing at r ──changes of r+1, r+2, …──→ listing at r+n          equal to a fresh one at r+n
#          └──────── a change at or before r, another cluster ──→ Doubt: list again
#
# The mirror also remembers the keys whose deletion it saw. A key that is only missing from a later
# listing may never have been deleted: etcd may have been restored from an older backup.
#
# Invariants
# - The state is that of one revision: all changes of a revision are applied, or none.
# - Only changes advance the revision. Progress notifications don't: before etcd 3.5.8, a
#   notification may overtake earlier events.
# - No key is both in the state and among the deleted ones.


@dataclass(frozen=True, slots=True)
class Changed:
    entry: CoordinationEntry

    @property
    def revision(self) -> Revision:
        return self.entry.mod_revision


@dataclass(frozen=True, slots=True)
class Removed:
    """The key was deleted, or its lease ended."""

    key: str
    revision: Revision


Change: TypeAlias = Changed | Removed


class Doubt(Exception):
    """A message contradicts the known state: list again."""


class Mirror:
    """The entries under a prefix, changed in place. `deleted`: see `Followed`."""

    def __init__(self, listing: Listing, deleted: Mapping[str, Revision] = NOTHING_DELETED) -> None:
        self.revision = listing.revision
        self.cluster_id = listing.cluster_id
        self._began = listing.revision
        self._entries = {entry.key: entry for entry in listing}
        self._deleted = {key: at for key, at in deleted.items() if key not in self._entries}

    def listed_again(self, listing: Listing) -> Mirror:
        """Return the mirror that continues from a fresh listing, taken without an error. It keeps
        the deletions that this mirror saw, unless etcd has another history by now.
        """
        if listing.cluster_id != self.cluster_id or listing.revision < self.revision:
            return Mirror(listing)
        return Mirror(listing, {key: at for key, at in self._deleted.items() if at > self._began})

    def apply(self, changes: Iterable[Change], cluster_id: int) -> None:
        """Apply the changes of one or several whole revisions, in etcd's order. Raises Doubt: they
        come from another cluster, or from an old revision. Some may have been applied: discard the
        mirror.
        """
        if cluster_id != self.cluster_id:
            raise Doubt(
                f"the etcd cluster with id {cluster_id:x} answered, but this member watches"
                f" the etcd cluster with id {self.cluster_id:x}; schedd reads all keys again"
            )
        known, newest = self.revision, self.revision
        for change in changes:
            if change.revision <= known or change.revision < newest:
                raise Doubt(
                    f"etcd sent a change of revision {change.revision}, which isn't newer than"
                    f" the known revision {newest}; schedd reads all keys again"
                )
            newest = change.revision
            self._apply_change(change)
        self.revision = newest

    def _apply_change(self, change: Change) -> None:
        match change:
            case Changed(entry):
                self._entries[entry.key] = entry
                self._deleted.pop(entry.key, None)
            case Removed(key, revision):
                self._entries.pop(key, None)
                self._deleted[key] = revision

    def listing(self) -> Listing:
        entries = tuple(sorted(self._entries.values(), key=attrgetter("key")))
        return Listing(self.revision, self.cluster_id, entries)

    def followed(self) -> Followed:
        return Followed(self.listing(), dict(self._deleted))


log = logging.getLogger(__name__)

List: TypeAlias = Callable[[str], Awaitable[Listing]]
WatchStream: TypeAlias = EtcdStream[wire.WatchRequest, wire.WatchResponse]

_RECONCILE_EVERY: Final = 60.0
"""Seconds after which the state is listed again although nothing looks wrong."""


async def follow(
    connection: EtcdConnection, codec: Codec, list_: List, prefix: str
) -> AsyncIterator[Followed]:
    """See `EtcdClient.follow`."""
    follower = Follower(connection, codec, list_, prefix)
    running = asyncio.create_task(follower.run(), name=f"follow {prefix}")
    running.add_done_callback(lambda _: follower.news.set())
    try:
        while True:
            await follower.news.wait()
            follower.news.clear()
            if running.done():
                running.result()  # raises a bug or a rejection
            if follower.newest is not None:
                yield follower.newest
    finally:
        running.cancel()
        await asyncio.wait({running})


class Follower:
    """The loop that keeps `newest` up to date, and sets `news` whenever it changed."""

    def __init__(self, connection: EtcdConnection, codec: Codec, list_: List, prefix: str) -> None:
        self.newest: Followed | None = None
        self.news = asyncio.Event()
        self._connection = connection
        self._codec = codec
        self._list = list_
        self._prefix = prefix
        self._backoff = Backoff(initial=0.02, maximum=max(0.5, connection.deadline))

    async def run(self) -> None:
        """Follow the prefix forever. Raises AccessDenied: the user may not read the prefix."""
        mirror: Mirror | None = None
        while True:
            try:
                mirror = await self._once(mirror)
            except (Unavailable, Doubt) as why:
                level = logging.WARNING if isinstance(why, Doubt) else logging.INFO
                log.log(level, "watch of %r in etcd restarts: %s", self._prefix, why)
                mirror = None
                self._broken()
            await asyncio.sleep(self._backoff.next())

    async def _once(self, before: Mirror | None) -> Mirror:
        """List, then watch, and continue from the mirror `before` if nothing was wrong with it.
        Return the mirror when it is time to reconcile.
        """
        listing = await self._list(self._prefix)
        mirror = Mirror(listing) if before is None else before.listed_again(listing)
        self._show(mirror.followed())
        stream = await self._connection.open(WATCH)
        try:
            await stream.send(self._create(listing.revision))
            async with asyncio.timeout(_RECONCILE_EVERY):
                await self._watch(stream, mirror)
        except TimeoutError:
            return mirror
        except RevisionGone:
            raise  # the endpoint itself is healthy
        except Unavailable:
            self._connection.distrust(stream)
            raise
        finally:
            await stream.close()

    def _create(self, revision: Revision) -> wire.WatchRequest:
        start, end = self._codec.span(self._prefix)
        return wire.WatchRequest(
            create_request=wire.WatchCreateRequest(
                key=start, range_end=end, start_revision=revision + 1, fragment=True
            )
        )

    async def _watch(self, stream: WatchStream, mirror: Mirror) -> NoReturn:
        changes: list[Change] = []
        while True:
            response = await self._next(stream)
            self._backoff.reset()
            if response.canceled:
                raise _cancelled(response)
            changes += (_change(self._codec, event) for event in response.events)
            if changes and not response.fragment:
                mirror.apply(changes, response.header.cluster_id)
                changes.clear()
                self._show(mirror.followed())

    async def _next(self, stream: WatchStream) -> wire.WatchResponse:
        """Return the next message; request progress if the stream is idle."""
        deadline = self._connection.deadline
        response = await stream.receive(2 * deadline)
        if response is None:
            await stream.send(wire.WatchRequest(progress_request=wire.WatchProgressRequest()))
            response = await stream.receive(deadline)
        if response is None:
            raise Unavailable(
                "etcd: a watch (a stream of changes) timed out: etcd didn't answer the request"
                " for its progress; schedd starts the watch again"
            )
        return response

    def _broken(self) -> None:
        """Discard the watched deletions now, and not only when etcd is available again."""
        if self.newest is not None:
            self._show(Followed(self.newest.listing, NOTHING_DELETED))

    def _show(self, followed: Followed) -> None:
        known, self.newest = self.newest, followed
        if known is None:
            self.news.set()
            return
        before, listing = known.listing, followed.listing
        if before.cluster_id != listing.cluster_id or listing.revision < before.revision:
            log.warning(
                "following %r: etcd went from cluster %x revision %d to cluster %x revision %d",
                self._prefix,
                before.cluster_id,
                before.revision,
                listing.cluster_id,
                listing.revision,
            )
            self.news.set()
        elif before.entries != listing.entries or known.deleted != followed.deleted:
            self.news.set()


def _cancelled(response: wire.WatchResponse) -> Unavailable:
    if response.compact_revision:
        return RevisionGone(
            "etcd: the watch can't continue, because etcd has compacted (deleted) the changes"
            f" before revision {response.compact_revision}; schedd reads all keys again"
        )
    return Unavailable(
        f"etcd: etcd canceled a watch: {response.cancel_reason or 'no reason given'}; schedd"
        " starts the watch again"
    )


def _change(codec: Codec, event: wire.Event) -> Change:
    if event.type == wire.Event.DELETE:
        return Removed(codec.name(event.kv.key), Revision(event.kv.mod_revision))
    return Changed(codec.entry(event.kv))
