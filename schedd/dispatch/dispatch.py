"""Dispatch: send ready runs to workers that have granted slots to this member.

    ready queue + offers ──choose──→ chosen ──assign──→ worker

From choice to push, the slots of a run are reserved (`attached_slots`). A worker that lowers its
grant meanwhile is sent the reserved number, and keeps those slots.

A batch is written in one statement. When many runs are ready, a batch contains only the priority
class of its first run, so that a few urgent runs don't wait for a large batch. The next batch also
takes lower classes: a run with free slots waits for one batch at most.

Remaining slots are used for pre-dispatch of runs that are due soon (`core/timers/pre_dispatch`), in
a separate batch, so that ready runs don't wait for it.

Slots may be granted only for runs that have priority over another member's head. A run of lower
rank leaves such slots unused, and the next demand makes workers divide them again. Late runs are
dispatched within their limits (`catch_up_limits`), and request no more slots than that.

The choice is provisional until the assigner has checked it on rows.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Final, TypeAlias

from schedd.core.dispatch.batch_size import BatchSize
from schedd.core.dispatch.placement import Need, SlotOffer, able, asked_by, need_of
from schedd.core.dispatch.priority_order import class_of, rank_of
from schedd.core.dispatch.ready_queue import QueueHead
from schedd.core.dispatch.slot_index import SlotIndex
from schedd.core.events import Waiting
from schedd.core.ids import JobId, RunId
from schedd.core.runs.model import Incarnation, LiveRun
from schedd.core.timers.catch_up_limits import CatchUpRoom
from schedd.core.timers.pre_dispatch import early_rank, may_be_pre_dispatched
from schedd.dispatch.assigner import Assigner
from schedd.dispatch.assignment import Chosen
from schedd.dispatch.broadcasts import Broadcasts
from schedd.dispatch.catch_up_limiter import CatchUpLimiter
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.dispatch.pool_usage_cache import PoolUsageCache
from schedd.dispatch.workers.attached_slots import SlotReservation
from schedd.dispatch.workers.registry import no_demand
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.records import replace
from schedkit.tasks import Loop

BATCH: Final = 500
EARLY_BATCH: Final = 250
"""Runs that one batch pre-dispatches at most: runs that become ready meanwhile wait for it."""
AT_ONCE: Final = timedelta(0)
MANY: Final = 500
"""Number of ready runs from which on urgent runs get a statement of their own."""
SORTED_AT_MOST: Final = 2_000
"""Runs that one round sorts into the buckets of their needs; later rounds sort the rest."""
TRY_HELD_EVERY: Final = 1.0
TRY_HELD: Final = 16
"""Jobs whose blocked runs are tried periodically, in turn, in case hints were lost."""
UNSORT_EVERY: Final = 10.0
"""Seconds after which the needs of runs that no worker here can run are read again: an edit may
have changed them.
"""


_Going: TypeAlias = tuple[LiveRun, CachedDefinition, Need, bool]
"""A run with its definition and need, and whether it goes to any able worker, the one with most
slots first, and has no limit but that.
"""


class Dispatch(OwnerPart):
    """The loop that dispatches runs."""

    def __init__(
        self,
        context: OwnerContext,
        broadcasts: Broadcasts,
        late: CatchUpLimiter,
        pools: PoolUsageCache,
        assigner: Assigner,
        passed: Callable[[LiveRun], None] = lambda _: None,
    ) -> None:
        """`passed`: called with a run that is past its deadline and was taken off the queue."""
        super().__init__(context)
        self._passed = passed
        self._broadcasts = broadcasts
        self._late = late
        self._pools = pools
        self._assigner = assigner
        self._changed: set[JobId] = set()
        self._try_held_at = 0.0
        self._unsort_at = 0.0
        self._held_turn = 0
        self._is_choosing = False
        """Whether runs may be off the queue whose slots aren't reserved yet."""
        self._left_room = False
        """Whether the last batch was of urgent runs only, and had room for others."""
        self._size, self._early_size = BatchSize(BATCH), BatchSize(EARLY_BATCH)
        self.loop = Loop("dispatch", self.step, interval=1.0)

    def wake(self) -> None:
        """Wake the loop: runs became ready."""
        self.loop.wake()

    def slots_freed(self) -> None:
        """Wake the loop if runs wait: slots became free."""
        if self._run_index.ready or self._run_index.early:
            self.loop.wake()

    def changed(self, jobs: Collection[JobId]) -> None:
        """Forget the pools of these jobs' waiting runs: their definitions were written."""
        self._changed.update(jobs)
        self.loop.wake()

    async def step(self) -> float:
        """Run one round; return the seconds until the next."""
        if self._changed and self._run_index.ready.has_pool_runs:
            self._run_index.ready.unsort_pooled(self._changed)
        self._changed.clear()
        if self._cluster_pause.is_paused:
            self._workers.demand(no_demand)
            return 1.0
        self._run_index.ripen(self._clock.now())
        self._look_again(boottime())
        began = boottime()
        with self._workers.choosing() as choice:
            self._is_choosing = True
            try:
                placed, more = await self._choose(choice)
            finally:
                self._is_choosing = False
            begin = await self._broadcasts.choose(self._late.room(), self._pools.rooms)
            chosen: list[Chosen] = [*placed, *begin]
            if chosen:
                try:
                    more = await self._assigner.dispatch_runs(chosen, choice) or more
                finally:  # a batch that timed out is tried again with fewer runs
                    self._size.record_batch(len(chosen), boottime() - began)
        more = more or await self._pre_dispatch()
        self._tell_demand()
        if self._run_index.ready.short:
            self._run_index.on_short()
        if more or (chosen and self._run_index.ready and self._workers.offers()):
            return 0.0
        return min(1.0, self._ripens(), self._late.wait(), self._pools.wait())

    def _ripens(self) -> float:
        """Return the seconds until the next run is ready, or a held timer asks for slots."""
        now = self._clock.now()
        ripe, asks = self._run_index.next_ripe(), self._run_index.held_timers.next_at()
        ripens = 1.0 if ripe is None else max(0.0, (ripe - now).total_seconds())
        return ripens if asks is None or asks <= now else min(ripens, (asks - now).total_seconds())

    def _look_again(self, now: float) -> None:
        """Try blocked and unplaceable runs again, in case hints were lost."""
        if now >= self._try_held_at:
            self._try_held_at = now + TRY_HELD_EVERY
            held = self._run_index.held
            for place in range(min(TRY_HELD, len(held))):
                self._run_index.release(held[(self._held_turn + place) % len(held)])
            self._held_turn += TRY_HELD
        if now >= self._unsort_at:
            self._unsort_at = now + UNSORT_EVERY
            here = self._workers.incarnations()
            self._definition_cache.forget(
                self._run_index.ready.unsort(
                    lambda need: need is not None and not any(able(one, need) for one in here)
                )
            )

    async def _choose(
        self, choice: SlotReservation
    ) -> tuple[list[tuple[LiveRun, CachedDefinition, SlotOffer]], bool]:
        """Take runs off the queue in order, as far as offers allow; return them, and whether to
        continue at once.

        A run that no offer fits waits in the queue of its need and blocks no other run. A run that
        a scan puts back while definitions are read is chosen once. An offer is valid until the next
        await; slots granted during one are for the next runs, not for those popped before.
        """
        await self._late.load_definitions()
        rooms = await self._pools.read_rooms(self._run_index.ready.pools())
        late, unsorted = self._late.room(), self._run_index.ready.unsorted_late
        chosen: list[tuple[LiveRun, CachedDefinition, SlotOffer]] = []
        taken: set[RunId] = set()
        seen = 0
        apart = len(self._run_index.ready) >= MANY and not self._left_room
        self._left_room = False
        while len(chosen) < self._size.now and seen < SORTED_AT_MOST:
            offers = self._workers.offers()
            room = min(self._size.now - len(chosen), offers.slots)
            first = chosen[0][0] if chosen else None
            batch = self._pop(room, offers, late, first, apart=apart)
            if not batch:
                self._left_room = apart and bool(chosen) and room > 0
                more = 0 < self._run_index.ready.unsorted_late < unsorted
                return chosen, more or not self._run_index.ready.pools() <= rooms.left.keys()
            seen += len(batch)
            try:
                known = await self._definition_cache.newest({run.job_id for run in batch})
            except Unavailable:
                self._run_index.ready.add([*batch, *(run for run, _, _ in chosen)])
                raise
            offers, now = self._workers.still_offered(), self._clock.now()
            going = self._going(batch, known, taken, now)
            for (need, spreads), alike in groupby(going, key=itemgetter(2, 3)):
                those = [*alike]
                offered = offers.spread(need, len(those)) if spreads else None
                if offered is not None:
                    for offer, taking in Counter(offered).items():
                        choice.reserve_slots(offer, taking * need.slots)
                    chosen += [
                        (run, entry, offer)
                        for (run, entry, _, _), offer in zip(those, offered, strict=False)
                    ]
                    self._run_index.ready.add([each[0] for each in those[len(offered) :]], need)
                    continue
                for run, entry, *_ in those:
                    paced = run.paced_by(entry.definition)
                    fits = not run.late or late.fits(need.slots, paced=paced)
                    fits = fits and rooms.fits(need.pool)
                    one = None
                    if fits:
                        one = offers.choose(run.job_id, entry.definition, need, rank_of(run))
                    if one is None:
                        self._run_index.ready.add([run], need, paced=paced)
                    else:
                        if run.late:
                            late.use_room(need.slots, paced=paced)
                        rooms.use_room(need.pool)
                        choice.reserve_slots(one, need.slots)
                        chosen.append((run, entry, one))
            taken = {run.key.run_id for run, _, _ in chosen}
        return chosen, True

    def _going(
        self,
        batch: Sequence[LiveRun],
        known: Mapping[JobId, CachedDefinition],
        taken: Collection[RunId],
        now: datetime,
    ) -> list[_Going]:
        """Return the runs that may go now."""
        going: list[_Going] = []
        for run in batch:
            entry = known.get(run.job_id)
            if run.key.run_id in taken:
                continue
            if entry is None:  # its definition can't be read
                self._run_index.read_again([run])
                continue
            text = entry.text
            generation = text.definition.generation
            if (text.hurried or run.generation < generation) and entry.ends(run, now) is not None:
                self._passed(run)
                continue
            need = text.need
            if run.parent is not None or run.target is not None:
                need = need_of(text.definition, run)
            if run.line is None or self._run_index.ready.learn(run, need, generation):
                spreads = text.spreads and not (run.ready_at > run.due_at and run.late)
                going.append((run, entry, need, spreads))
            else:
                self._definition_cache.forget([run.job_id])
                self._run_index.ready.add([run])  # its need is looked up again first
        return going

    async def _pre_dispatch(self) -> bool:
        """Pre-dispatch runs that are due soon into remaining slots; return whether more wait."""
        with self._workers.choosing() as choice:
            chosen = await self._choose_early(choice)
            if chosen:
                began = boottime()
                try:
                    await self._assigner.dispatch_runs(chosen, choice)
                finally:
                    self._early_size.record_batch(len(chosen), boottime() - began)
        return bool(chosen) and len(self._run_index.early) > 0

    async def _choose_early(self, choice: SlotReservation) -> list[Chosen]:
        offers = self._workers.offers()
        room = min(self._early_size.now, offers.slots)
        if not room or not self._run_index.early:
            return []
        batch = self._run_index.take_early(room, lambda need: offers.free(need, -inf))
        try:
            known = await self._definition_cache.newest({run.job_id for run in batch})
        except Unavailable:
            self._run_index.put_runs(batch, self._clock.now())
            raise
        offers = self._workers.still_offered()
        chosen: list[Chosen] = []
        for run in batch:
            entry = known.get(run.job_id)
            if entry is None or not may_be_pre_dispatched(run, entry.definition, entry.compiled):
                self._run_index.wait(run)
                continue
            need = need_of(entry.definition, run)
            offer = offers.choose(run.job_id, entry.definition, need, early_rank(run))
            if offer is None:
                self._run_index.put_runs([run], self._clock.now())
            else:
                choice.reserve_slots(offer, need.slots)
                chosen.append((run, entry, offer))
        return chosen

    def _pop(
        self,
        count: int,
        offers: SlotIndex,
        late: CatchUpRoom,
        first: LiveRun | None,
        *,
        apart: bool,
    ) -> list[LiveRun]:
        """Return at most `count` runs to dispatch with `first`. `apart`: no run of a class below
        the first one's.
        """

        def goes(need: Need | None, rank: float) -> bool:
            return offers.any(rank) if need is None else offers.free(need, rank)

        batch: list[LiveRun] = []
        ready, knows = self._run_index.ready, self._definition_cache.knows
        least = class_of(first) if first and apart else 0
        left, pools = (replace(late), self._pools.rooms.copy())  # some needs aren't known yet
        if apart and first is None:
            batch = ready.take_runs(min(1, count), goes, left, least, knows, pools)
            least = class_of(batch[0]) if batch else 0
        batch += ready.take_runs(count - len(batch), goes, left, least, knows, pools)
        late.lookups = left.lookups
        return batch

    def may_use(self, offers: SlotIndex) -> bool:
        """Return whether a run or a timer that waits may use some of these slots, as far as known.
        Runs that aren't due yet don't count.
        """
        index, now = self._run_index, self._clock.now()
        ripe = index.next_ripe()
        if self._is_choosing or index.ready.leaves_some or (ripe is not None and ripe <= now):
            return True

        def fits(need: Need | None) -> bool:
            return offers.slots > 0 if need is None else offers.free(need, -inf)

        if index.ready and index.ready.heads(fits, self._late.room(), self._pools.rooms):
            return True
        return index.held_timers.any_due(now, fits)

    def placeable(self) -> int:
        """Return how many ready runs some worker here could run, with or without free slots. Paced
        runs wait for their release.
        """
        here = self._workers.incarnations()
        return self._run_index.ready.count(
            lambda need: bool(here) and (need is None or any(able(one, need) for one in here))
        )

    def _tell_demand(self) -> None:
        ready, early = self._run_index.ready, self._run_index.early
        running, timers = self._run_index.running, self._run_index.timers
        held, now = self._run_index.held_timers, self._clock.now()
        late, rooms = self._late.room(), self._pools.rooms

        def heads(worker: Incarnation) -> list[QueueHead]:
            first = ready.heads(lambda need: need is None or able(worker, need), late, rooms)
            first += held.heads(now, lambda need: able(worker, need))
            return first + early.heads(lambda need: able(worker, need))

        self._workers.demand(heads, asked_by([*ready.needs, *held.needs, *early.needs]))
        counts = (len(ready), len(running), len(timers), ready.late, ready.pool_runs)
        since = ready.oldest()
        waited = None if since is None else max(AT_ONCE, self._clock.now() - since)
        self._emit(Waiting(*counts, oldest=waited))
