"""A prefix as of one revision, kept by a listing and the changes after it. Pure.

    listing at r ──changes of r+1, r+2, …──→ listing at r+n          equal to a fresh one at r+n
         └──────── a change at or before r, another cluster ──→ Doubt: list again

It also remembers which keys it saw deleted. What a later listing merely lacks was perhaps never
deleted: etcd may have been restored from before the key was made.

Invariants
- The state is that of one revision: all changes of a revision are taken, or none.
- Only changes move the revision on. A progress notification doesn't: before etcd 3.5.8 it may
  overtake events that are still on their way.
- No key is both in the state and among the deleted ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from schedd.core.cluster.coordination import (
    NOTHING_DELETED,
    CoordinationEntry,
    Followed,
    Listing,
    Revision,
)


@dataclass(frozen=True, slots=True)
class Changed:
    """The key was written."""

    entry: CoordinationEntry

    @property
    def revision(self) -> Revision:
        """That of the write."""
        return self.entry.mod_revision


@dataclass(frozen=True, slots=True)
class Removed:
    """The key was deleted, or its lease ended."""

    key: str
    revision: Revision


Change: TypeAlias = Changed | Removed


class Doubt(Exception):
    """What came can't follow what is known: the state has to be listed again."""


class Mirror:
    """The entries under a prefix, changed in place. `deleted`: see `Followed`."""

    def __init__(self, listing: Listing, deleted: Mapping[str, Revision] = NOTHING_DELETED) -> None:
        self.revision = listing.revision
        self.cluster_id = listing.cluster_id
        self._began = listing.revision
        self._entries = {entry.key: entry for entry in listing}
        self._deleted = {key: at for key, at in deleted.items() if key not in self._entries}

    def listed_again(self, listing: Listing) -> Mirror:
        """The mirror that goes on from a fresh listing, made though nothing was wrong. It knows the
        deletions that this one has seen itself, unless etcd has another history by now.
        """
        if listing.cluster_id != self.cluster_id or listing.revision < self.revision:
            return Mirror(listing)
        return Mirror(listing, {key: at for key, at in self._deleted.items() if at > self._began})

    def apply(self, changes: Iterable[Change], cluster_id: int) -> None:
        """Take the changes of one or several whole revisions, in etcd's order.

        Raises:
            Doubt: they come from another cluster or lie in the past. The mirror may have taken
                some of them: it is of no more use.
        """
        if cluster_id != self.cluster_id:
            raise Doubt(f"cluster {cluster_id:x} answers in place of {self.cluster_id:x}")
        known, newest = self.revision, self.revision
        for change in changes:
            if change.revision <= known or change.revision < newest:
                raise Doubt(f"a change of revision {change.revision} after {newest}")
            newest = change.revision
            self._take(change)
        self.revision = newest

    def _take(self, change: Change) -> None:
        match change:
            case Changed(entry):
                self._entries[entry.key] = entry
                self._deleted.pop(entry.key, None)
            case Removed(key, revision):
                self._entries.pop(key, None)
                self._deleted[key] = revision

    def listing(self) -> Listing:
        """The present state."""
        entries = tuple(sorted(self._entries.values(), key=attrgetter("key")))
        return Listing(self.revision, self.cluster_id, entries)

    def followed(self) -> Followed:
        """The present state, and what was deleted as this looked on."""
        return Followed(self.listing(), dict(self._deleted))
