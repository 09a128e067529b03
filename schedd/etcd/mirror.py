"""A prefix as of one revision, kept by a listing and the changes after it. Pure.

    listing at r ──changes of r+1, r+2, …──→ listing at r+n          equal to a fresh one at r+n
         └──────── a change at or before r, another cluster ──→ Doubt: list again

Invariants
- The state is that of one revision: all changes of a revision are taken, or none.
- Only changes move the revision on. A progress notification doesn't: before etcd 3.5.8 it may
  overtake events that are still on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from schedd.core.coordination import Entry, Listing, Revision


@dataclass(frozen=True, slots=True)
class Changed:
    """The key was written."""

    entry: Entry

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
    """The entries under a prefix, changed in place."""

    def __init__(self, listing: Listing) -> None:
        self.revision = listing.revision
        self.cluster_id = listing.cluster_id
        self._entries = {entry.key: entry for entry in listing}

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
            case Removed(key):
                self._entries.pop(key, None)

    def listing(self) -> Listing:
        """The present state."""
        entries = tuple(sorted(self._entries.values(), key=attrgetter("key")))
        return Listing(self.revision, self.cluster_id, entries)
