"""Dispatch: give ready runs to workers that have slots for us.

    ready queue + offers ──choose──→ drafts ──one transaction a lane──→ assigned ──push──→ worker

From choice to push a run's slots are under way (`attached`): a worker that grants less meanwhile is
told, and keeps them for it.

A batch is written as a whole, and where much is ready it is full: there it has nothing of a lower
priority than its first, so that the few that are urgent don't take the time of the many. The next
one has: who waits beside free slots waits for one batch, however many are urgent.

What slots are left then is for what is due soon (`core/early`): it is handed out ahead and armed,
in a batch of its own, so that what is ready doesn't wait for it.

Slots may be granted for what goes before another member's head alone; a run that goes after it
leaves them unused, and the demand that is told then has them dealt anew. What is late goes as far
as there is room for it (`late_runs`), and asks for no more slots than that.

The choice is a wish: overlap, pause, generation and state are judged by the assign statement on
rows, under the shard's lock (PROTOCOL 3). A run is pushed only after a COMMIT that was seen; one
whose COMMIT is in doubt is found by the scan, and goes back by itself when it never started.

A draft that was refused is looked at once more: made from an old definition, it is made anew at
once; if other runs of its job are in its way, it is held until one of them is gone, and what it
replaces is ended (`crowds`); else the scan brings it back.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from math import inf
from typing import Final

from schedd.core.batch_size import BatchSize
from schedd.core.early import armable, early_rank
from schedd.core.events import AssignedRuns, Emit, Waiting
from schedd.core.ids import JobId, RunId
from schedd.core.late import Room
from schedd.core.model import Assigned, Claim, Draft, Incarnation, LiveRun
from schedd.core.offers import Offers
from schedd.core.placement import Need, Offer, able, asked_by, need_of
from schedd.core.rank import class_of, rank_of
from schedd.core.ready_queue import Head
from schedd.core.records import Assignments, Unstarted
from schedd.owner.board import Board
from schedd.owner.brake import Brake
from schedd.owner.broadcasts import Broadcasts
from schedd.owner.catalogue import Catalogue
from schedd.owner.crowds import Crowds
from schedd.owner.drafts import Chosen, draft_of
from schedd.owner.late_runs import LateRuns
from schedd.owner.offering import Choice
from schedd.owner.pools import Pools
from schedd.owner.transact import Failed, Transactor
from schedd.owner.wordings import Known
from schedd.owner.workers import Workers, no_demand
from schedd.ports import ClusterClock, Nudges, OwnerStore
from schedkit import failpoints
from schedkit.clock import boottime
from schedkit.errors import Unavailable
from schedkit.records import replace
from schedkit.tasks import Loop

BATCH: Final = 500
EARLY_BATCH: Final = 250
"""Runs that are armed in one go at most: what becomes ready meanwhile waits for that."""
AT_ONCE: Final = timedelta(0)
MANY: Final = 500
"""Runs that are ready, from which on what is urgent doesn't share its statement with the rest."""
SORTED_AT_MOST: Final = 2_000
"""Runs that are put into the line of their need in one round; the rest has its turn in the next."""
TRY_HELD_EVERY: Final = 1.0
TRY_HELD: Final = 16
"""Jobs of which a held run is tried unasked, in turn: the truth behind all hints."""
UNSORT_EVERY: Final = 10.0
"""Seconds after which what nobody here can do is looked up again: it may have been edited."""

AFTER_COMMIT = failpoints.awaited("assign.after_commit")


class Dispatch:
    """The loop that hands runs out."""

    def __init__(
        self,
        board: Board,
        catalogue: Catalogue,
        workers: Workers,
        store: OwnerStore,
        transactor: Transactor,
        clock: ClusterClock,
        brake: Brake,
        nudges: Nudges,
        crowds: Crowds,
        broadcasts: Broadcasts,
        late: LateRuns,
        pools: Pools,
        emit: Emit,
        passed: Callable[[LiveRun], None] = lambda _: None,
    ) -> None:
        """`passed`: told of a run that has waited too long, and isn't on the queue any more."""
        self._passed = passed
        self._board = board
        self._crowds = crowds
        self._broadcasts = broadcasts
        self._late = late
        self._pools = pools
        self._brake = brake
        self._catalogue = catalogue
        self._workers = workers
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._nudges = nudges
        self._emit = emit
        self._changed: set[JobId] = set()
        self._try_held_at = 0.0
        self._unsort_at = 0.0
        self._held_turn = 0
        self._left_room = False
        """The last batch was of what is urgent alone, and had room for the rest."""
        self._size, self._early_size = BatchSize(BATCH), BatchSize(EARLY_BATCH)
        self.loop = Loop("dispatch", self.step, interval=1.0)

    def wake(self) -> None:
        """Runs became ready."""
        self.loop.wake()

    def slots_freed(self) -> None:
        """Slots became free: where nothing waits, nobody looks."""
        if self._board.ready or self._board.early:
            self.loop.wake()

    def changed(self, jobs: Collection[JobId]) -> None:
        """Their definitions were written: what of them waits for a pool may be in another."""
        self._changed.update(jobs)
        self.loop.wake()

    async def step(self) -> float:
        """One round; gives the seconds until the next is needed."""
        if self._changed and self._board.ready.has_pooled:
            self._board.ready.unsort_pooled(self._changed)
        self._changed.clear()
        if self._brake.on:
            self._workers.demand(no_demand)
            return 1.0
        self._board.ripen(self._clock.now())
        self._look_again(boottime())
        began = boottime()
        with self._workers.choosing() as choice:
            placed, more = await self._choose(choice)
            begin = await self._broadcasts.choose(self._late.room(), self._pools.rooms)
            chosen: list[Chosen] = [*placed, *begin]
            if chosen:
                try:
                    with self._board.starting():
                        more = await self._assign(chosen, choice) or more
                finally:  # what takes too long for the database is tried again by fewer
                    self._size.took(len(chosen), boottime() - began)
        more = more or await self._arm()
        self._tell_demand()
        if self._board.ready.short:
            self._board.on_short()
        if more or (chosen and self._board.ready and self._workers.offers()):
            return 0.0
        ripe = self._board.next_ripe()
        ripens = 1.0 if ripe is None else max(0.0, (ripe - self._clock.now()).total_seconds())
        return min(1.0, ripens, self._late.wait(), self._pools.wait())

    def _look_again(self, now: float) -> None:
        """Whatever hint was lost, nothing waits for ever."""
        if now >= self._try_held_at:
            self._try_held_at = now + TRY_HELD_EVERY
            held = self._board.held
            for place in range(min(TRY_HELD, len(held))):
                self._board.release(held[(self._held_turn + place) % len(held)])
            self._held_turn += TRY_HELD
        if now >= self._unsort_at:
            self._unsort_at = now + UNSORT_EVERY
            here = self._workers.incarnations()
            self._catalogue.forget(
                self._board.ready.unsort(
                    lambda need: need is not None and not any(able(one, need) for one in here)
                )
            )

    async def _choose(self, choice: Choice) -> tuple[list[tuple[LiveRun, Known, Offer]], bool]:
        """Take runs off the queue in order, as far as the offers go; whether to go on at once.

        A run that no offer fits waits in the line of its need and holds nobody up. One that a scan
        puts back while definitions are read is chosen once. An offer stands until the next wait;
        what is granted during one is for whoever goes next, not for what was popped before.
        """
        await self._late.look()
        rooms = await self._pools.look(self._board.ready.pools())
        late, unsorted = self._late.room(), self._board.ready.unsorted_late
        chosen: list[tuple[LiveRun, Known, Offer]] = []
        taken: set[RunId] = set()
        seen = 0
        apart = len(self._board.ready) >= MANY and not self._left_room
        self._left_room = False
        while len(chosen) < self._size.now and seen < SORTED_AT_MOST:
            offers = self._workers.offers()
            room = min(self._size.now - len(chosen), offers.slots)
            first = chosen[0][0] if chosen else None
            batch = self._pop(room, offers, late, first, apart=apart)
            if not batch:
                self._left_room = apart and bool(chosen) and room > 0
                more = 0 < self._board.ready.unsorted_late < unsorted
                return chosen, more or not self._board.ready.pools() <= rooms.left.keys()
            seen += len(batch)
            try:
                known = await self._catalogue.newest({run.job_id for run in batch})
            except Unavailable:
                self._board.ready.add([*batch, *(run for run, _, _ in chosen)])
                raise
            offers, now = self._workers.still_offered(), self._clock.now()
            for run in batch:
                entry = known.get(run.job_id)
                if entry is None or run.key.run_id in taken:
                    continue  # its definition can't be read; the scan brings it back
                if entry.ends(run, now) is not None:
                    self._passed(run)
                    continue
                need, paced = need_of(entry.definition, run), run.paced_by(entry.definition)
                if not self._board.ready.learn(run, need, entry.definition.generation):
                    self._catalogue.forget([run.job_id])
                    self._board.ready.add([run])  # it is looked up again, and then goes
                    continue
                fits = not run.late or late.fits(need.slots, paced=paced)
                fits = fits and rooms.fits(need.pool)
                offer = offers.choose(entry.definition, need, rank_of(run)) if fits else None
                if offer is None:
                    self._board.ready.add([run], need, paced=paced)
                else:
                    if run.late:
                        late.take(need.slots, paced=paced)
                    rooms.take(need.pool)
                    choice.take(offer, need.slots)
                    taken.add(run.key.run_id)
                    chosen.append((run, entry, offer))
        return chosen, True

    async def _arm(self) -> bool:
        """Hand out what is due soon, as far as slots are left; whether there is more of it."""
        with self._workers.choosing() as choice:
            chosen = await self._choose_early(choice)
            if chosen:
                began = boottime()
                try:
                    with self._board.starting():
                        await self._assign(chosen, choice)
                finally:
                    self._early_size.took(len(chosen), boottime() - began)
        return bool(chosen) and len(self._board.early) > 0

    async def _choose_early(self, choice: Choice) -> list[Chosen]:
        offers = self._workers.offers()
        room = min(self._early_size.now, offers.slots)
        if not room or not self._board.early:
            return []
        batch = self._board.take_early(room, lambda need: offers.free(need, -inf))
        try:
            known = await self._catalogue.newest({run.job_id for run in batch})
        except Unavailable:
            self._board.put_runs(batch, self._clock.now())
            raise
        offers = self._workers.still_offered()
        chosen: list[Chosen] = []
        for run in batch:
            entry = known.get(run.job_id)
            if entry is None or not armable(run, entry.definition, entry.compiled):
                self._board.wait(run)
                continue
            need = need_of(entry.definition, run)
            offer = offers.choose(entry.definition, need, early_rank(run))
            if offer is None:
                self._board.put_runs([run], self._clock.now())
            else:
                choice.take(offer, need.slots)
                chosen.append((run, entry, offer))
        return chosen

    def _pop(
        self,
        count: int,
        offers: Offers,
        late: Room,
        first: LiveRun | None,
        *,
        apart: bool,
    ) -> list[LiveRun]:
        """So many at most, to go with this one. `apart`: nothing of a lower class goes with the
        first of them.
        """

        def goes(need: Need | None, rank: float) -> bool:
            return offers.any(rank) if need is None else offers.free(need, rank)

        batch: list[LiveRun] = []
        ready, knows = self._board.ready, self._catalogue.knows
        least = class_of(first) if first and apart else 0
        left, pools = (
            replace(late),
            self._pools.rooms.copy(),
        )  # of what they need not all is known here
        if apart and first is None:
            batch = ready.take(min(1, count), goes, left, least, knows, pools)
            least = class_of(batch[0]) if batch else 0
        batch += ready.take(count - len(batch), goes, left, least, knows, pools)
        late.lookups = left.lookups
        return batch

    def placeable(self) -> int:
        """How many of those that are ready somebody here could do, slots or not; what is paced
        waits for its release.
        """
        here = self._workers.incarnations()
        return self._board.ready.count(
            lambda need: bool(here) and (need is None or any(able(one, need) for one in here))
        )

    async def _assign(self, chosen: Sequence[Chosen], choice: Choice) -> bool:
        """Hand these out; whether some are to be tried again at once."""
        known = {run.key.run_id: entry for run, entry, _ in chosen}
        runs = {run.key.run_id: run for run, _, _ in chosen}
        drafts = [draft_of(run, entry, to) for run, entry, to in chosen]
        self._board.judge({run.job_id for run, _, _ in chosen})
        answers = await self._transactor.by_lane(drafts, self._write)
        refused: list[tuple[LiveRun, Known]] = []
        held: list[LiveRun] = []
        full: list[LiveRun] = []
        unpushed: list[Assigned] = []
        for answer in answers:
            if not isinstance(answer, Failed):
                unpushed += self._push(answer, known, runs)
                refused += [(runs[key.run_id], known[key.run_id]) for key in answer.waiting]
                held += [runs[key.run_id] for key in answer.held]
                full += [runs[key.run_id] for key in answer.full]
        choice.settle()
        now = self._clock.now()
        for run in held:
            if run.ready_at > now:  # whatever is in its way may be gone by then
                self._board.wait(run)
            else:
                self._board.hold(run)
        self._wait_for_pools(full, known)
        stays = {run.key.run_id for run in held} | {run.key.run_id for run, _ in refused}
        self._pools.forget({known[run_id].definition.pool for run_id in stays})
        tried = self._board.judged() + self._begin(answers)
        back = {run.key for run in (*held, *full)} | {run.key for run, _ in refused}
        went = [each for each in chosen if each[0].key not in back]
        self._late.released(sum(run.paced_by(entry.definition) for run, entry, _ in went))
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        for answer in failed:
            # It didn't happen, or is in doubt: either way the statement judges them again.
            self._board.put_runs([runs[draft.key.run_id] for draft in answer.items], now)
            self._pools.forget({draft.pool for draft in answer.items})
        if unpushed:
            await self._send_elsewhere([(each, known[each.run.key.run_id]) for each in unpushed])
        if failed:
            self._catalogue.forget(run.job_id for run, _ in refused)
            raise failed[0].error
        again = tried > 0
        if refused:
            again = await self._look_into(refused) or again
        entries = {run.job_id: entry for run, entry, _ in chosen}
        return (bool(held) and await self._crowds.part(held, entries)) or again

    def _begin(self, answers: Sequence[Assignments | Failed[Draft]]) -> int:
        """Put broadcasts that have begun, and their children, where they belong; how many are
        ready.
        """
        begun = [run for one in answers if not isinstance(one, Failed) for run in one.begun]
        if begun:
            self._nudges.runs_changed([run.hint for run in begun])
        return self._board.put_runs(begun, self._clock.now())

    def _wait_for_pools(self, full: Sequence[LiveRun], known: dict[RunId, Known]) -> None:
        """There was less room than was thought."""
        definitions = {run.key.run_id: known[run.key.run_id].definition for run in full}
        self._pools.forget({one.pool for one in definitions.values()})
        for run in full:
            definition = definitions[run.key.run_id]
            need, paced = need_of(definition, run), run.paced_by(definition)
            self._board.ready.add([run], need, paced=paced)

    async def _send_elsewhere(self, handed: Sequence[tuple[Assigned, Known]]) -> None:
        """Their streams broke meanwhile. Where they are attached nowhere, nobody was told of these
        tokens, so nobody can start.
        """
        absent = [each.run for each in await self._workers.elsewhere.assign(handed)]
        unstarted = [Unstarted(run.key, run.shard, run.token) for run in absent]
        back = await self._transactor.rows(unstarted, self._store.give_back)
        self._board.put_runs(back, self._clock.now())

    async def _write(self, claim: Claim, drafts: Sequence[Draft]) -> Assignments:
        next_token = self._transactor.ownership.sequencer(claim)
        assigned = await self._store.assign(claim, drafts, next_token)
        await AFTER_COMMIT()
        return assigned

    def _push(
        self, answer: Assignments, known: dict[RunId, Known], runs: dict[RunId, LiveRun]
    ) -> list[Assigned]:
        """Send what was assigned, and tell of what wasn't; gives what couldn't be sent."""
        self._transactor.lost(answer.lost, "assign")
        now = self._clock.now()
        unpushed: list[Assigned] = []
        for assigned in answer.assigned:
            run = assigned.run
            self._board.handed_out(run)
            if not self._workers.push(assigned, known[run.key.run_id]):
                unpushed.append(assigned)
        turns = []
        for key in answer.ended:
            run = runs[key.run_id]
            self._board.forget(key.run_id, run.job_id)
            if known[key.run_id].definition.max_runs:
                turns.append((run.job_id, run.shard))
        if turns:  # given back: a schedule that had ended by them may go on
            self._nudges.jobs_changed(turns)
        if answer.assigned:
            waits = tuple(
                max(AT_ONCE, now - runs[a.run.key.run_id].ready_at) for a in answer.assigned
            )
            self._emit(AssignedRuns(len(answer.assigned), waits))
        self._nudges.runs_changed(
            [a.run.hint for a in answer.assigned] + [runs[key.run_id].hint for key in answer.ended]
        )
        return unpushed

    async def _look_into(self, refused: Sequence[tuple[LiveRun, Known]]) -> bool:
        """Why were these not handed out? Whether some are to be tried again at once."""
        jobs: set[JobId] = {run.job_id for run, _ in refused}
        self._catalogue.forget(jobs)
        newest = await self._catalogue.newest(jobs)
        again = [
            run
            for run, made_from in refused
            if (entry := newest.get(run.job_id)) is not None
            and entry.definition.generation != made_from.definition.generation
        ]
        return self._board.put_runs(again, self._clock.now()) > 0

    def _tell_demand(self) -> None:
        ready, early = self._board.ready, self._board.early
        running, timers = self._board.running, self._board.timers
        late, rooms = self._late.room(), self._pools.rooms

        def heads(worker: Incarnation) -> list[Head]:
            first = ready.heads(lambda need: need is None or able(worker, need), late, rooms)
            return first + early.heads(lambda need: able(worker, need))

        self._workers.demand(heads, asked_by([*ready.needs, *early.needs]))
        counts = (len(ready), len(running), len(timers), ready.late, ready.pooled)
        since = ready.oldest()
        waited = None if since is None else max(AT_ONCE, self._clock.now() - since)
        self._emit(Waiting(*counts, oldest=waited))
