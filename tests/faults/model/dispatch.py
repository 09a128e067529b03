"""Dispatch: drafts, the assign statement that judges them on rows, and the push.

waiting runs ─→ drafts ─→ fence ─→ tokens ─→ lock runs ─→ one statement ─→ COMMIT seen ─→ push
due timer ────→ draft ──→ fence ─→ token ──→ one statement: timer, run ─→ COMMIT seen ─→ push
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from faults.model import turns
from faults.model.rows import (
    LIVE,
    WAITING,
    Attempt,
    Claim,
    IncarnationId,
    JobId,
    Run,
    RunId,
    ShardId,
    Steps,
    Timer,
    Transaction,
    Unknown,
)
from faults.model.rules import Rule
from faults.model.timing import JOINED, START_WITHIN, TRIGGERED, due_at, has, instant
from faults.model.worker import Assignment, Worker

if TYPE_CHECKING:
    from faults.model.owner import Member
    from faults.model.world import World

BATCH = 3


@dataclass(frozen=True, slots=True)
class Draft:
    """Request of the dispatcher: this run, to that incarnation."""

    key: RunId
    worker: Worker
    incarnation: IncarnationId
    generation: int
    """Of the definition that it is made from."""
    free: bool
    """Whether overlap let it go, by what was read when it was drafted."""
    token: int = 0


def assign(member: Member) -> Steps[None]:
    """Dispatch some runs of one shard."""
    world = member.world
    cluster = world.database.present
    if not member.epochs or cluster.paused:
        return
    claim = member.claim(world.rng.choice(list(member.epochs)))
    drafts = _drafts(member, claim.shard)
    if not drafts:
        return
    if not world.on(Rule.TOKENS_UNDER_LOCK):
        drafts = [replace(draft, token=member.next_token(claim)) for draft in drafts]
    transaction = yield from member.begin(claim)
    if world.database.present.paused:
        transaction.rollback()
        return
    if world.on(Rule.TOKENS_UNDER_LOCK):
        drafts = [replace(draft, token=member.next_token(claim)) for draft in drafts]
    for draft in drafts:
        yield from transaction.lock(world.database.runs, draft.key)
    handed = _statement(world, transaction, claim, drafts)
    if not transaction.writes:
        transaction.rollback()
        return
    yield from commit_and_push(member, transaction, handed)


def commit_and_push(
    member: Member, transaction: Transaction, handed: list[tuple[Worker, Assignment]]
) -> Steps[None]:
    """Send COMMIT; send the assignments to their workers once its answer was seen."""
    try:
        yield from transaction.commit()
    except Unknown:
        if member.world.on(Rule.PUSH_AFTER_COMMIT):
            raise
    for worker, assignment in handed:
        yield
        _push(member, worker, assignment)


def draft_of_timer(member: Member, claim: Claim, key: RunId, generation: int) -> Draft | None:
    """Request to fire a due timer as RUNNING; None: no worker has a slot."""
    world = member.world
    live = world.live_workers() if world.fires_running else frozenset()
    ready = [worker for worker in world.workers if worker.incarnation in live]
    if not ready or world.rng.random() < 0.3:
        return None
    worker = world.rng.choice(ready)
    draft = Draft(key, worker, worker.incarnation, generation, _is_alone(world, key))
    if world.on(Rule.TOKENS_UNDER_LOCK):
        return draft
    return replace(draft, token=member.next_token(claim))


def fire_running(
    world: World,
    transaction: Transaction,
    claim: Claim,
    draft: Draft | None,
    kept: Run | None,
    *,
    made: bool,
) -> list[tuple[Worker, Assignment]]:
    """Part of the fire statement: the run that it inserts is dispatched at once, unless another
    run of its job is live. `kept`: the row of that instant that was there before.
    """
    if draft is None:
        return []
    alone = _is_alone(world, draft.key) if world.on(Rule.DECIDE_AFTER_LOCK) else draft.free
    if made and (alone or not world.on(Rule.FIRED_RUNNING_ALONE)):
        run = transaction.get(world.database.runs, draft.key)
        assert run is not None
        return [_dispatch(world, transaction, claim, draft, run)]
    if kept is not None and kept.state in LIVE and not world.on(Rule.FIRED_RUNNING_IF_INSERTED):
        return [_handed(world, draft)]
    return []


def _is_alone(world: World, key: RunId) -> bool:
    """Whether its job has no other live run."""
    runs = world.database.runs_of(key[0])
    return not any(run.state in LIVE for other, run in runs if other != key)


def _drafts(member: Member, shard: ShardId) -> list[Draft]:
    """Waiting runs of a shard with workers for them, as all of it stands now."""
    world, rows = member.world, member.world.database
    live = world.live_workers()
    ready = [worker for worker in world.workers if worker.incarnation in live]
    drafts = []
    for key, run in rows.runs.rows.items():
        if run.state in WAITING and member.shard_of(key[0], run) == shard and ready:
            timer = rows.timers.get(key[0])
            worker = world.rng.choice(ready)
            generation = timer.generation if timer else run.generation
            free = _goes(world, key, run, _busy(world, key[0]))
            drafts.append(Draft(key, worker, worker.incarnation, generation, free))
    world.rng.shuffle(drafts)
    return sorted(drafts[:BATCH], key=lambda draft: draft.key)


def _statement(
    world: World, transaction: Transaction, claim: Claim, drafts: list[Draft]
) -> list[tuple[Worker, Assignment]]:
    """Decide which runs are dispatched, which are skipped, which wait."""
    rows = world.database
    handed: list[tuple[Worker, Assignment]] = []
    own: Counter[JobId] = Counter()
    for draft in drafts:
        job = draft.key[0]
        run, timer = rows.runs.get(draft.key), rows.timers.get(job)
        if run is None or run.state not in WAITING or run.token >= draft.token:
            continue
        if world.on(Rule.GENERATION_AT_ASSIGN) and not _bound(world, draft, claim, timer):
            continue
        if timer is not None and edited_away(world, draft.key, run, timer):
            if due_at(draft.key[1]) <= world.now or not world.on(Rule.EDITED_WHEN_DUE):
                skip(world, transaction, draft.key, "EDITED")
            continue
        busy = _busy(world, job) + own[job] * world.on(Rule.OVERLAP_IN_STATEMENT)
        busy += _before(world, draft.key)
        goes = _goes(world, draft.key, run, busy)
        if not world.on(Rule.DECIDE_AFTER_LOCK):
            goes = draft.free
        if goes or not world.on(Rule.OVERLAP_AT_ASSIGN):
            own[job] += run.token == 0 or not world.on(Rule.ADMITTED_BY_TOKEN)
            handed.append(_dispatch(world, transaction, claim, draft, run))
        elif world.jobs[job].skip and run.state == "PENDING" and _judged_now(world, draft.key):
            skip(world, transaction, draft.key, "OVERLAP")
    return handed


def skip(world: World, transaction: Transaction, key: RunId, why: str) -> None:
    """A run that waits ends, and gives its turn back. Its row is locked."""
    run = transaction.get(world.database.runs, key)
    assert run is not None
    transaction.put(world.database.runs, key, replace(run, state="SKIPPED", why=why))
    turns.give_back(world, transaction, key, run)


def edited_away(world: World, key: RunId, run: Run, timer: Timer) -> bool:
    """Whether its instant was taken out of the schedule before it was due."""
    fresh = run.state == "PENDING" and run.generation < timer.generation
    lacks = key[1] < TRIGGERED and not has(timer.thin, key[1])
    return fresh and lacks and timer.changed_at <= instant(key[1]) and world.on(Rule.EDITED_AWAY)


def _judged_now(world: World, key: RunId) -> bool:
    """Whether what is in its way may skip it: not before it is due, for it may be gone by then."""
    return due_at(key[1]) <= world.now or not world.on(Rule.OVERLAP_WHEN_DUE)


def _before(world: World, key: RunId) -> int:
    """Count the runs of its job that wait before a run that isn't due yet."""
    if due_at(key[1]) <= world.now or not world.on(Rule.PRE_DISPATCHED_IN_TURN):
        return 0
    return sum(
        run.state == "PENDING" and run.token == 0 and due_at(other[1]) < due_at(key[1])
        for other, run in world.database.runs_of(key[0])
    )


def _bound(world: World, draft: Draft, claim: Claim, timer: Timer | None) -> bool:
    """Whether the job's timer is as the draft thinks; what a person triggered runs in a pause."""
    if timer is None or timer.generation != draft.generation:
        return False
    if timer.shard != claim.shard and world.on(Rule.SHARD_FROM_TIMER):
        return False
    return not timer.paused or TRIGGERED <= draft.key[1] < JOINED


def _busy(world: World, job: JobId) -> int:
    """Admitted runs of a job, as a statement finds them now."""
    by_token = world.on(Rule.ADMITTED_BY_TOKEN)
    return sum(
        run.token > 0 and (run.state in LIVE if by_token else run.state == "RUNNING")
        for _, run in world.database.runs_of(job)
    )


def _goes(world: World, key: RunId, run: Run, busy: int) -> bool:
    return run.token > 0 or busy < world.jobs[key[0]].limit


def _dispatch(
    world: World, transaction: Transaction, claim: Claim, draft: Draft, run: Run
) -> tuple[Worker, Assignment]:
    bound = world.on(Rule.GENERATION_AT_ASSIGN)
    generation = draft.generation if bound else run.generation
    worker, assignment = _handed(world, replace(draft, generation=generation), run)
    start_by, instant_of = assignment.start_by, assignment.not_before
    written = start_by if world.on(Rule.START_BY_FROM_INSTANT) else world.now + START_WITHIN
    attempt = Attempt(
        draft.token, draft.incarnation, generation, written, world.now, instant_of > world.now
    )
    after = replace(
        run,
        state="RUNNING",
        token=draft.token,
        attempt=run.attempt + 1,
        generation=generation,
        incarnation=draft.incarnation,
        sent=(*run.sent, attempt),
    )
    transaction.put(world.database.runs, draft.key, after)
    return worker, assignment


def _handed(world: World, draft: Draft, run: Run | None = None) -> tuple[Worker, Assignment]:
    """The assignment as its worker gets it."""
    instant_of = 0 if run is not None and run.hurried else due_at(draft.key[1])
    start_by = max(world.now, instant_of) + START_WITHIN
    return draft.worker, Assignment(
        draft.key, draft.token, draft.incarnation, draft.generation, start_by, instant_of
    )


def _push(member: Member, worker: Worker, assignment: Assignment) -> None:
    """By its own stream, or by a member that has one; again when a stream broke."""
    world = member.world
    if worker in member.attached:
        world.send(lambda: worker.receive(assignment))
    else:
        world.send(lambda: _relay(world, worker, assignment))
    if world.rng.random() < 0.15:
        world.send(lambda: worker.receive(_again(world, assignment)))


def _relay(world: World, worker: Worker, assignment: Assignment) -> None:
    """Relay once, if any member has a stream to that worker."""
    if any(worker in member.attached and not member.dead for member in world.members):
        world.send(lambda: worker.receive(_again(world, assignment)))


def _again(world: World, assignment: Assignment) -> Assignment:
    if world.on(Rule.RESEND_KEEPS_START_BY):
        return assignment
    return replace(assignment, start_by=world.now + START_WITHIN)
