"""Follow the keys in etcd while the daemon runs, with or without a tenure.

    coordination.follow ──Followed──→ membership ──ClusterView──→ view(), listeners, until()

Invariants
- The newest view is replaced as a whole; no reader sees half of a change.
- While etcd is unavailable, the last view stays. A caller that acts on it checks `trusted()` first.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn, TypeAlias

from schedd.cluster.tenure import LiveTenure
from schedd.core.cluster.coordination import Followed, LeaseId
from schedd.core.cluster.etcd_values import named
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView, view_of
from schedd.core.ids import Epoch, ShardId, TenureId
from schedd.ports import Coordination
from schedkit.clock import utcnow
from schedkit.errors import Fault

log = logging.getLogger(__name__)


Listener: TypeAlias = Callable[[ClusterView, ClusterView], None]


class Observer:
    """The newest view, and this member's own tenure while it has one."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._view = EMPTY_VIEW
        self._live: LiveTenure | None = None
        self._listeners: list[Listener] = []
        self._news = asyncio.Event()
        self.duplicate = ""
        """Another daemon that serves under this member's name; empty: none is known."""
        self.foreign = ""
        """Why the etcd prefix or the database belongs to another cluster; empty: it doesn't."""
        self.went_back: datetime | None = None
        """When revisions were last seen to decrease; None: never."""

    # ── for calls and servers ────────────────────────────────────────────────────────────────

    def view(self) -> ClusterView:
        """Return the newest view; it is empty until etcd has been read once."""
        return self._view

    @property
    def tenure(self) -> TenureId | None:
        return self._live.tenure if self._live else None

    def owned(self) -> dict[ShardId, Epoch]:
        return self._live.owned() if self._live else {}

    def trusted(self) -> bool:
        return self._live is not None and self._live.trusted()

    @property
    def lease(self) -> LeaseId | None:
        return self._live.keeper.lease.id if self._live else None

    # ── for the member's own lifecycle ───────────────────────────────────────────────────────────

    def lives(self, live: LiveTenure | None) -> None:
        """Set the running tenure; None: it has ended."""
        self._live = live

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(known, view)` with each new view, in the loop's thread. Return a function
        that removes the listener.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def until(self, condition: Callable[[ClusterView], bool]) -> ClusterView:
        """Return the first view, the current one included, for which the condition holds."""
        while not condition(self._view):
            await self._news.wait()
        return self._view

    async def run(self) -> NoReturn:
        async for followed in self._coordination.follow(""):
            self._update_view(followed)
        raise Fault("the watch of etcd ended without an error")

    def _update_view(self, followed: Followed) -> None:
        known, self._view = self._view, view_of(followed.listing, self._view, followed.deleted)
        if known is not EMPTY_VIEW and self._view.restored_since(known):
            log.error("etcd revisions went back: etcd was restored from a backup, or replaced")
            self.went_back = utcnow()
        if self._view.unreadable and self._view.unreadable != known.unreadable:
            log.error("invalid etcd keys ignored: %s", named(self._view.unreadable))
        self._news.set()
        self._news = asyncio.Event()
        for listener in tuple(self._listeners):
            listener(known, self._view)
