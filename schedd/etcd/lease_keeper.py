"""A lease kept alive by a thread of its own, as long as the event loop makes progress.

    event loop  ── beat, each 0.5 s ──→ ┌──────────┐ ── keepalive ──→ etcd
                ←─ lost ──────────────  │  thread  │ ←─ granted TTL ──
                                        └──────────┘    (own channel)

A busy loop can't starve the keepalive, and a hung loop can't keep the lease: the thread sends only
while the last beat is recent. `lease_trust` decides, and this module acts.

Invariants
- Once `trusted()` is False, it stays False.
- The thread touches the loop only by `call_soon_threadsafe`.
- Whatever ends the thread, even a bug, ends the trust.
- Leaving the block of `keep_lease` ends the thread's keepalives and then revokes the lease.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from schedd.core.cluster.coordination import Lease
from schedd.etcd.access import EtcdAccess
from schedd.etcd.client import EtcdClient
from schedd.etcd.keepalive_connection import Lifeline
from schedd.etcd.lease_trust import LeaseLoss, LeaseTrust, LeaseWait, Send, Timings
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.lease_margin import LeaseMargin

log = logging.getLogger(__name__)

_BEAT_EVERY: Final = 0.5


class EtcdLeaseKeeper:
    def __init__(
        self, lease: Lease, trust: LeaseTrust, lifeline: Lifeline, margin: LeaseMargin
    ) -> None:
        self.lease = lease
        self._trust = trust
        self._lifeline = lifeline
        self._margin = margin
        self._lock = threading.Lock()  # guards _trust
        self._nudge = threading.Event()
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._beating: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._keep_alive, name="lease keeper", daemon=True)

    # ── for the event loop ───────────────────────────────────────────────────────────────────

    @property
    def trusted_until(self) -> float:
        """Seconds of CLOCK_BOOTTIME at which trust ends unless a keepalive extends it."""
        return self._trust.until

    def trusted(self) -> bool:
        """Return whether the lease may be acted on now. Cheap: ask before each effect."""
        with self._lock:
            return self._trust.holds(boottime())

    async def until_lost(self) -> LeaseLoss:
        """Wait until the lease is lost; return the reason. Returns at the moment trust ends."""
        while self.trusted():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self.trusted_until - boottime())):
                    await self._ended.wait()
        loss = self._trust.loss
        assert loss is not None
        return loss

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def _beat(self) -> None:
        """Record that the event loop makes progress. Repeated each half second. A timer, not a
        task: one round of the loop is enough, whatever else is queued.
        """
        with self._lock:
            waited_for = self._trust.beat(boottime())
        if waited_for:
            self._nudge.set()
        self._beating = self._loop.call_later(_BEAT_EVERY, self._beat)

    def stop(self) -> None:
        """Send no more keepalives. Returns at once."""
        self._stopping = True
        if self._beating is not None:
            self._beating.cancel()
        self._nudge.set()

    async def stopped(self) -> None:
        """Wait for the thread's end: at most one call's deadline after `stop`."""
        await asyncio.to_thread(self._thread.join)
        self._lifeline.close()

    # ── in the thread ────────────────────────────────────────────────────────────────────────

    def _keep_alive(self) -> None:
        try:
            while not self._stopping and self._step():
                pass
        finally:
            self._end()

    def _step(self) -> bool:
        """Make and carry out one decision. Return False when the lease is lost."""
        with self._lock:
            step = self._trust.step(boottime())
        match step:
            case LeaseWait(seconds):
                self._nudge.wait(seconds)
                self._nudge.clear()
            case Send():
                self._send()
            case LeaseLoss():
                log.warning("lease %x lost: %s", self.lease.id, step.value)
                return False
        return True

    def _send(self) -> None:
        sent = boottime()
        try:
            ttl = self._lifeline.keepalive(self.lease.id)
        except Unavailable as error:
            log.warning("renewal of lease failed, retrying: %s lease=%x", error, self.lease.id)
            with self._lock:
                self._trust.failed(boottime())
        else:
            with self._lock:
                self._trust.renewed(sent, ttl, boottime())
                until = self._trust.until
            self._margin.renewed(until, self.lease.ttl)

    def _end(self) -> None:
        with self._lock:
            self._trust.give_up()
        if not self._stopping:
            self._loop.call_soon_threadsafe(self._ended.set)


@asynccontextmanager
async def keep_lease(
    client: EtcdClient,
    access: EtcdAccess,
    *,
    ttl: int,
    deadline: float,
    margin: LeaseMargin | None = None,
) -> AsyncIterator[EtcdLeaseKeeper]:
    """Yield a lease that is kept alive for the time of the block, and revoked after it.

    `ttl` and `deadline`: seconds. The granted TTL may be greater (`keeper.lease.ttl`). `margin`
    records how close the lease comes to being lost.

    Raises:
        Unavailable: no lease was granted.
        Misconfigured: ttl and deadline don't fit (`lease_trust.Timings.check`).
    """
    Timings(ttl).check(deadline)
    sent = boottime()
    lease = await client.grant(ttl)
    trust = LeaseTrust(lease.ttl, deadline=deadline, sent=sent)
    margin = margin or LeaseMargin()
    margin.renewed(trust.until, lease.ttl)
    lifeline = Lifeline(access, client.silence, deadline=deadline, emit=client.emit)
    keeper = EtcdLeaseKeeper(lease, trust, lifeline, margin)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()
        margin.lease_ended()
        await _revoke(client, lease)
        await keeper.stopped()


async def _revoke(client: EtcdClient, lease: Lease) -> None:
    """Revoke the lease if etcd can be reached, rather than wait for its TTL."""
    try:
        await client.revoke(lease.id)
    except Unavailable as error:
        log.info("lease not revoked, it will expire: %s lease=%x", error, lease.id)
