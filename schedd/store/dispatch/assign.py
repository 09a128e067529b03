"""Dispatch runs under new tokens. The statement that writes decides, on committed rows.

    plain drafts ─→ draw tokens ─→ one statement: dispatched, or ↓
    other drafts ─→ draw tokens ─→ lock run rows in order ─→ one statement: dispatched, skipped or
                                                             waiting

Invariants (docs/protocol-rules.md, P1.2, P3.5, P3.6)
- Called under the locks of the drafts' shards. Tokens are drawn there; a run's token only grows.
- The timer must have the draft's generation and must not be paused, except for triggered runs.
  During a cluster pause nothing is dispatched.
- A run is *admitted* from its first token until it ends. The overlap policy limits the admitted
  runs of a job (`schedd/core/runs/overlap.py`), including those of this statement. The limit isn't
  applied to a run that is already admitted.
- A statement decides only drafts of one policy of each job: no draft depends on another one with a
  different policy. The others wait for the next statement.
- A broadcast is decided like any run, but has no worker: it creates its children instead
  (`broadcasts`). No overlap policy applies to them.
- Of a pool only as many drafts are decided as it has free places (`pool_limits`).
- Other runs of a job are read only if it has any and its policy counts them, and in the batch's own
  partition if all of them are there (`_beside`). Otherwise each lookup would scan the partitions of
  all days. A run waits if its row counts others and its draft doesn't.
- A run that isn't ready is pre-dispatched: it may start when it is ready, and `start_by` is counted
  from then. It isn't skipped before, as a blocking run may end by then. It isn't pre-dispatched
  while an earlier run of its job waits: that one would be skipped because of it.
- `attempt` counts tries, the present one included. The previous one moves to `attempts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from datetime import datetime
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection

from schedd.core.ids import NO_TOKEN, JobId, RunId, ShardId, TenureId, Token
from schedd.core.jobs.definition import Overlap, Priority
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import (
    SMALL_PAYLOAD,
    DispatchedBatch,
    Draft,
    LiveRun,
    RunKey,
    Terms,
    alike,
)
from schedd.core.runs.pools import PoolKey
from schedd.store.dispatch import broadcasts, pool_limits
from schedd.store.dispatch.overlap import ADMITTED, APART, NEXT
from schedd.store.statements import arrays
from schedd.store.statements.keys import (
    RUNS,
    Locked,
    days_of,
    found_in,
    instant,
    key_arguments,
    lock_runs,
    table_of,
)
from schedd.store.timers import run_quota
from schedkit.records import dataclass

BUSY = "COALESCE(((SELECT busy.runs FROM busy) ->> e.job_id::text)::int, 0)"
"""The number of admitted runs of the draft's job."""

BESIDE = """
SELECT l.job_id, bool_and(l.scheduled_at >= %(first)s AND l.scheduled_at < %(last)s)
FROM unnest(%(jobs)s::uuid[], %(shards)s::int[]) j(job_id, shard)
JOIN live l ON l.shard = j.shard AND l.job_id = j.job_id
GROUP BY l.job_id HAVING count(*) > 1
"""
"""Jobs with more than one live run, and whether all of a job's are in the batch's days. The other
jobs have no admitted runs outside the batch. A run that is inserted meanwhile isn't admitted: that
takes the shard's lock.
"""

DRAFTS = """unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[], %(jobs)s::uuid[],
        %(shards)s::int[], %(generations)s::int[], %(tokens)s::bigint[], %(workers)s::text[],
        %(incarnations)s::uuid[], %(limits)s::int[], %(policies)s::text[],
        %(start_limits)s::float8[], %(counted)s::bool[], %(crowded)s::bool[], %(spots)s::tid[])
      WITH ORDINALITY AS {by}(scheduled_at, run_id, job_id, shard, generation, next_token,
        next_worker, next_incarnation, job_limit, job_policy, start_limit, counted, crowded, spot,
        n)"""

UNPAUSED = """(NOT t.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))
      AND NOT (SELECT paused FROM cluster WHERE one)"""

TIMERS = """
    JOIN timers t ON t.job_id = d.job_id AND t.shard = d.shard AND t.generation = d.generation"""

MAY = f"""r.state IN ('PENDING', 'RETRYING') AND r.token < {{by}}.next_token
      AND r.job_id IS NOT DISTINCT FROM {{by}}.job_id
      AND {UNPAUSED}
      AND ({{by}}.counted OR CASE WHEN r.overlap IS NULL THEN {{by}}.job_limit = 0
        ELSE r.overlap = 'ALLOW' END)"""
"""The condition of a dispatch: the run waits, and its timer `t` is as the owner read it. (The
comparison of jobs is written so that it can't use an index.)
"""

DISPATCH = """UPDATE {{runs}} r SET state = 'RUNNING', token = d.next_token,
        generation = d.generation, attempt = r.attempt + 1, assignments = r.assignments + 1,
        worker = d.next_worker, incarnation = d.next_incarnation,
        assigned_at = statement_timestamp(),
        start_by = GREATEST(statement_timestamp(), r.ready_at) + d.start_limit * interval '1 s',
        started_at = NULL, finished_at = NULL, exit_code = NULL, reason = NULL, error = '',
        digest = NULL
    FROM {source} WHERE {goes} AND {{found_by_d}}
    RETURNING d.n, {outcome}r.priority, r.due_at, r.ready_at, r.attempt, r.losses, r.start_by,
        r.created_at, r.payload IS NOT NULL AS paid"""

DISPATCH_ALL = DISPATCH.format(
    source=DRAFTS.format(by="d") + TIMERS,
    goes=f"r.token = 0 AND {MAY.format(by='d')}",
    outcome="true, ",
)
"""ASSIGN for a batch whose runs never had a token, and whose jobs have no other live runs that
count: every run that fulfils `MAY` is dispatched.
"""

ASSIGN = f"""
WITH b AS MATERIALIZED (
    SELECT * FROM {DRAFTS.format(by="b")}
), c AS (  -- candidates: they wait, and their timer is as the owner read it
    SELECT b.*, t.paused, r.ready_at, r.overlap AS said,
        COALESCE(r.overlap, b.job_policy) AS policy,
        CASE WHEN r.overlap IS NULL THEN b.job_limit WHEN r.overlap = 'ALLOW' THEN 0 ELSE 1 END
          AS overlap_limit, r.parent IS NOT NULL AS child,
        r.state = 'PENDING' AND {run_quota.AS_FRESH.format(r="r")} AS fresh,
        r.token, r.attempt, r.generation AS made_from, r.state, r.reason,
        r.worker, r.incarnation, r.assigned_at, r.start_by, r.started_at, r.finished_at,
        r.exit_code, r.error, r.digest
    FROM b JOIN timers t ON t.job_id = b.job_id AND t.shard = b.shard
      AND t.generation = b.generation
    CROSS JOIN LATERAL (
        SELECT * FROM {{runs}} r WHERE {{found_by_b}}
          AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
    ) r
    WHERE {MAY.format(by="b")}
), busy AS (  -- admitted runs by job; for a run that isn't due, earlier waiting ones, too;
    -- a map, as the planner may turn a join with it into a loop
    SELECT jsonb_object_agg(job_id::text, admitted) AS runs FROM (
        SELECT l.job_id, count(*) AS admitted
        FROM (
            SELECT shard, job_id, min(ready_at) AS soonest FROM c
            WHERE fresh AND overlap_limit > 0 AND crowded GROUP BY shard, job_id
        ) j
        JOIN live l ON l.shard = j.shard AND l.job_id = j.job_id
        JOIN {{others}} x ON x.scheduled_at = l.scheduled_at AND x.run_id = l.run_id
        WHERE x.state IN ('PENDING', 'RUNNING', 'RETRYING') AND NOT {APART}
          AND ({ADMITTED} OR j.soonest > statement_timestamp() AND x.ready_at < j.soonest)
        GROUP BY l.job_id
    ) admitted
), {{next}}, e AS (
    SELECT c.*, row_number() OVER mine AS place,
        c.said IS NOT DISTINCT FROM first_value(c.said) OVER mine AS judged
    FROM c WINDOW mine AS (PARTITION BY c.job_id, c.fresh, c.child ORDER BY c.n)
), d AS (
    SELECT e.*, NOT e.fresh OR e.judged AND CASE
        WHEN e.overlap_limit = 0 THEN true
        WHEN e.policy IN ('SKIP', 'ALLOW') THEN {BUSY} + e.place <= e.overlap_limit
        ELSE {BUSY} = 0 AND COALESCE((SELECT next.runs FROM next) ? e.run_id::text, false)
        END AS goes
    FROM e
), before AS (
    INSERT INTO attempts (run_id, token, scheduled_at, attempt, generation, state, reason, worker,
        incarnation, assigned_at, start_by, started_at, finished_at, exit_code, error, digest)
    SELECT run_id, token, scheduled_at, attempt, made_from,
        CASE WHEN digest IS NOT NULL AND state = 'RETRYING' THEN 'FAILED' ELSE state END,
        reason, worker, incarnation, assigned_at, start_by, started_at, finished_at, exit_code,
        error, digest
    FROM d WHERE goes AND token > 0
), assigned AS (
    {DISPATCH.format(source="d", goes="d.goes", outcome="")}
)
SELECT n, true, priority, due_at, ready_at, attempt, losses, start_by, created_at, paid
FROM assigned
UNION ALL
SELECT n, CASE WHEN policy = 'SKIP' AND ready_at <= statement_timestamp() THEN false END,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM d WHERE NOT goes AND judged AND state = 'PENDING'
ORDER BY n
"""

LINED_UP = f"""q AS (
    SELECT job_id, shard, job_policy, paused, max(ready_at) AS as_of FROM c
    WHERE fresh AND policy NOT IN ('SKIP', 'ALLOW')
    GROUP BY job_id, shard, job_policy, paused
), next AS ({NEXT})"""
"""Jobs whose runs are queued by policy, and the next run of each."""
NO_QUEUES = "next AS (SELECT NULL::jsonb AS runs)"
"""For a batch without such jobs. A run whose row has such a policy nevertheless waits."""

SKIP = f"""
WITH way AS (  -- the oldest admitted run of each job; a map, as above
    SELECT jsonb_object_agg(j.job_id::text, x.run_id) AS runs
    FROM unnest(%(jobs)s::uuid[], %(shards)s::int[]) j(job_id, shard)
    CROSS JOIN LATERAL (
        SELECT x.run_id FROM live l
        JOIN runs x ON x.scheduled_at = l.scheduled_at AND x.run_id = l.run_id
        WHERE l.shard = j.shard AND l.job_id = j.job_id
          AND x.state IN ('PENDING', 'RUNNING', 'RETRYING') AND {ADMITTED} AND NOT {APART}
        ORDER BY x.due_at, x.run_id LIMIT 1
    ) x
), skipped AS (
    UPDATE runs r SET state = 'SKIPPED', reason = 'OVERLAP', fired_by = %(tenure)s,
        finished_at = statement_timestamp(),
        excluded_by = 'run ' || ((SELECT way.runs FROM way) ->> r.job_id::text)
    FROM unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
    WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id AND r.state = 'PENDING'
    RETURNING r.shard, r.job_id, r.run_id
)
DELETE FROM live l USING skipped s
WHERE l.shard = s.shard AND l.job_id = s.job_id AND l.run_id = s.run_id
"""
"""A separate statement, as it is rarely needed. The decision was made under the same locks."""

PAYLOADS_UNDER_LOCKS = 64 * 1024
"""Bytes of payloads that one statement returns. The others are read after the COMMIT (P1.5)."""

DAY = "SELECT to_regclass(%(day)s)::text"
"""The table of the drafts' day; NULL: there is none."""

DISPATCH_PLAIN = f"""
WITH b AS MATERIALIZED (  -- in the order in which the rows are locked
    SELECT {instant("scheduled")} AS scheduled_at, b.*,
        (%(generations)s::int[])[terms] AS generation, (%(counted)s::bool[])[terms] AS counted
    FROM unnest(%(instants)s::bigint[], %(runs)s::uuid[], %(jobs)s::uuid[], %(shards)s::int[],
        %(tokens)s::bigint[], %(terms)s::int[]) WITH ORDINALITY
      b(scheduled, run_id, job_id, shard, next_token, terms, n)
    ORDER BY scheduled, run_id
), d AS MATERIALIZED (
    SELECT b.*, r.spot, r.place, t.paused
    FROM b CROSS JOIN LATERAL (
        SELECT r.ctid AS spot, r.tableoid AS place FROM runs r
        WHERE r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
          AND r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s OFFSET 0
    ) r CROSS JOIN LATERAL (
        SELECT t.paused FROM timers t WHERE t.job_id = b.job_id
          AND t.shard = b.shard AND t.generation = b.generation OFFSET 0
    ) t
    WHERE NOT (b.counted AND EXISTS (
        SELECT FROM live l WHERE l.shard = b.shard AND l.job_id = b.job_id
          AND l.run_id <> b.run_id))
), went AS (
    UPDATE {{runs}} r SET state = 'RUNNING', token = d.next_token, generation = d.generation,
        attempt = r.attempt + 1, assignments = r.assignments + 1,
        worker = (%(workers)s::text[])[d.terms],
        incarnation = (%(incarnations)s::uuid[])[d.terms], assigned_at = statement_timestamp(),
        start_by = GREATEST(statement_timestamp(), r.ready_at)
          + (%(start_limits)s::float8[])[d.terms] * interval '1 s'
    FROM d
    WHERE r.ctid = d.spot AND r.tableoid IS NOT DISTINCT FROM d.place
      AND r.run_id IS NOT DISTINCT FROM d.run_id AND r.job_id IS NOT DISTINCT FROM d.job_id
      AND r.token = 0 AND r.state IS NOT DISTINCT FROM 'PENDING' AND r.overlap IS NULL
      AND (NOT d.paused OR r.trigger IN ('MANUAL', 'SUBMIT'))
      AND NOT (SELECT paused FROM cluster WHERE one) AND r.ctid IS NOT DISTINCT FROM d.spot
    RETURNING d.n, r.payload, octet_length(r.payload) AS size
)
SELECT count(*), statement_timestamp(), CASE WHEN count(*) < %(count)s THEN array_agg(n) END,
    array_agg(n) FILTER (WHERE size > %(most)s), array_agg(n) FILTER (WHERE size <= %(most)s),
    array_agg(size) FILTER (WHERE size <= %(most)s),
    string_agg(payload, '') FILTER (WHERE size <= %(most)s)
FROM went
"""
"""Dispatch plain drafts whose rows are as they say, and whose jobs have no other live run that
counts. Another run of a job is admitted only under the shard's lock, so its job stays without one.

One row: how many were dispatched, the time, the positions of all that were if some weren't, the
positions of those with large payloads, and of those with small ones, with lengths and payloads in
the same order. A row that another transaction has moved meanwhile isn't
dispatched here. A table that isn't the partition of its day any more has no such rows.
"""

PAYLOADS = """
SELECT r.run_id, r.payload FROM runs r
JOIN unnest(%(scheduled)s::timestamptz[], %(runs)s::uuid[]) b(scheduled_at, run_id)
  ON r.scheduled_at = b.scheduled_at AND r.run_id = b.run_id
WHERE r.scheduled_at >= %(first)s AND r.scheduled_at < %(last)s
"""


@dataclass(frozen=True, slots=True)
class AssignOutcome:
    """The outcomes of the drafts."""

    assigned: list[DispatchedBatch] = field(default_factory=list)
    unread: list[RunKey] = field(default_factory=list)
    """Assigned runs whose payloads `read_payloads` must read. No batch has others, too."""
    ended: list[RunKey] = field(default_factory=list)
    held: list[RunKey] = field(default_factory=list)
    """Blocked by other runs of their jobs."""
    waiting: list[RunKey] = field(default_factory=list)
    full: list[RunKey] = field(default_factory=list)
    """Blocked by their pools."""
    begun: list[LiveRun] = field(default_factory=list)
    """Broadcasts, and their children."""


NOTHING = AssignOutcome()


def assign(
    connection: Connection,
    tenure: TenureId,
    drafts: Sequence[Draft],
    next_token: Callable[[ShardId], Token],
) -> AssignOutcome:
    """Dispatch the runs that may start now, in the order of the drafts: at most one for a run."""
    outcome = AssignOutcome()
    drafts = _dispatch_plain(connection, drafts, next_token, outcome)
    drafts, full = pool_limits.admitted(connection, drafts)
    outcome.full.extend([draft.key for draft in full])
    if not drafts:
        return outcome
    tokens = [next_token(draft.shard) for draft in drafts]
    keys = key_arguments([draft.key for draft in drafts])
    locked = lock_runs(connection, keys)
    table = table_of(keys, {one.table for one in locked})
    beside = _beside(connection, keys, drafts)
    lined_up = any(map(_is_lined_up, drafts))
    apart = not (beside or lined_up) and all(_is_plain(drafts[one.n - 1], one) for one in locked)
    others = table if all(beside.values()) else RUNS
    rows = connection.exec_driver_sql(
        statement(table, None if apart else others, lined_up),
        keys | _arguments(drafts, tokens, beside, locked),
    )
    dispatched: list[tuple[LiveRun, PoolKey]] = []
    batches: dict[object, list[LiveRun]] = {}
    begun: dict[RunKey, tuple[str, ...]] = {}
    decided = set()
    for n, goes, *columns in sorted(rows, key=itemgetter(0)):
        draft = drafts[n - 1]
        decided.add(draft.key)
        if goes and draft.terms.targets:
            begun[draft.key] = draft.terms.targets
        elif goes:
            run = _assigned(draft, tokens[n - 1], columns)
            dispatched.append((run, draft.terms.pool))
            of = alike(run, draft.terms), columns[-1]
            batches.setdefault(of, []).append(run)
            if columns[-1]:
                outcome.unread.append(run.key)
        else:
            (outcome.held if goes is None else outcome.ended).append(draft.key)
    outcome.assigned.extend(map(DispatchedBatch.of, batches.values()))
    pool_limits.add_places(connection, dispatched)
    if begun:
        outcome.begun.extend(broadcasts.begin(connection, tenure, begun))
    if outcome.ended:
        _skip(connection, tenure, drafts, outcome.ended)
        counted = {draft.key for draft in drafts if draft.terms.counted}
        run_quota.give_back(connection, [key for key in outcome.ended if key in counted])
    outcome.waiting.extend(draft.key for draft in drafts if draft.key not in decided)
    return outcome


def _dispatch_plain(
    connection: Connection,
    drafts: Sequence[Draft],
    next_token: Callable[[ShardId], Token],
    outcome: AssignOutcome,
) -> Sequence[Draft]:
    """Dispatch the plain drafts whose rows are as they say. Return those that must be decided by
    `ASSIGN`.

    If the trigger of another run of the job set a policy, the order of the two matters. If not all
    drafts are plain, the rows of all are locked in order first.
    """
    ordered = {draft.run.job_id for draft in drafts if draft.run.overlap is not None}
    mine = [
        draft
        for draft in drafts
        if draft.terms.plain
        and draft.run.token == NO_TOKEN
        and draft.run.state is State.PENDING
        and draft.run.overlap is None
        and draft.run.parent is None
        and draft.run.job_id not in ordered
    ]
    if not mine:
        return drafts
    instants = [draft.run.key.scheduled_at for draft in mine]
    days = days_of(instants)
    if days["day"] is None or (table := connection.exec_driver_sql(DAY, days).scalar()) is None:
        return drafts
    if len(mine) < len(drafts):
        lock_runs(connection, key_arguments([draft.key for draft in drafts]))
    tokens = [next_token(draft.shard) for draft in mine]
    terms = [*{id(draft.terms): draft.terms for draft in mine}.values()]
    numbers = {id(each): n for n, each in enumerate(terms, 1)}
    of = [numbers[id(draft.terms)] for draft in mine]
    [(count, at, went, large, small, sizes, contents)] = connection.exec_driver_sql(
        plain_statement(table),
        days
        | {
            "instants": arrays.microseconds(instants),
            "runs": arrays.ids([draft.run.key.run_id for draft in mine]),
            "jobs": arrays.ids([draft.run.job_id for draft in mine]),
            "shards": arrays.numbers([draft.shard for draft in mine]),
            "tokens": arrays.numbers(tokens),
            "terms": arrays.numbers(of),
            "generations": arrays.numbers([each.generation for each in terms]),
            "workers": arrays.texts([each.worker for each in terms]),
            "incarnations": arrays.ids([each.incarnation for each in terms]),
            "start_limits": arrays.numbers([e.start_by_after.total_seconds() for e in terms]),
            "counted": arrays.flags([each.overlap_limit > 0 for each in terms]),
            "count": len(mine),
            "most": min(SMALL_PAYLOAD, PAYLOADS_UNDER_LOCKS // len(mine)),
        },
    )
    outcome.unread.extend([mine[n - 1].run.key for n in large or ()])
    ends = [*accumulate(sizes or ())]
    payloads = {
        n: bytes(contents[end - size : end])
        for n, size, end in zip(small or (), sizes or (), ends, strict=True)
    }
    dispatched = range(1, len(mine) + 1) if count == len(mine) else sorted(went or ())
    early = {n: mine[n - 1].run.ready_at for n in dispatched if mine[n - 1].run.ready_at > at}
    unread = {*(large or ())}
    special = {*early, *payloads, *unread}
    batches: dict[object, list[int]] = {}
    for n in dispatched:
        which: object = of[n - 1]
        if n in special:
            which = which, early.get(n), n in payloads, n in unread
        batches.setdefault(which, []).append(n)
    for numbers_of in batches.values():
        n = numbers_of[0]
        run, with_terms = mine[n - 1].run, mine[n - 1].terms
        start_by = early.get(n, at) + with_terms.start_by_after
        outcome.assigned.append(
            DispatchedBatch(
                _first_attempt(run, with_terms, tokens[n - 1], start_by),
                [mine[n - 1].run for n in numbers_of],
                [tokens[n - 1] for n in numbers_of],
                [payloads[n] for n in numbers_of] if n in payloads else (),
            )
        )
    if len(dispatched) == len(drafts):
        return ()
    gone = {mine[n - 1].run.key.run_id for n in dispatched}
    return [draft for draft in drafts if draft.run.key.run_id not in gone]


def _first_attempt(run: LiveRun, terms: Terms, token: Token, start_by: datetime) -> LiveRun:
    """Return the dispatched run of a plain draft, as its row is now. Its other columns don't change
    before the first token.
    """
    return LiveRun(
        run.key,
        run.job_id,
        run.shard,
        State.RUNNING,
        run.priority,
        run.due_at,
        run.ready_at,
        1,
        0,
        token,
        terms.worker,
        terms.incarnation,
        start_by,
        generation=terms.generation,
        created_at=run.created_at,
    )


@lru_cache(maxsize=8)
def plain_statement(table: str) -> str:
    """Return DISPATCH_PLAIN for runs in this partition."""
    return DISPATCH_PLAIN.format(runs=table)


@lru_cache(maxsize=16)
def statement(table: str, others: str | None, lined_up: bool) -> str:
    """Return ASSIGN for runs in `table`, with the other runs of their jobs in `others`; None: they
    have none.
    """
    named = {"runs": table, "found_by_b": found_in(table, "b"), "found_by_d": found_in(table, "d")}
    if others is None:
        return DISPATCH_ALL.format(**named)
    return ASSIGN.format(**named, others=others, next=LINED_UP if lined_up else NO_QUEUES)


def _beside(
    connection: Connection, keys: dict[str, object], drafts: Sequence[Draft]
) -> dict[JobId, bool]:
    """Return the drafts' jobs that have other live runs which count, and whether those are all in
    the drafts' days.
    """
    jobs = {draft.job_id: draft.shard for draft in drafts if _is_counted(draft)}
    if not jobs:
        return {}
    of = {"jobs": arrays.ids(jobs), "shards": arrays.numbers(jobs.values())}
    return dict(map(tuple, connection.exec_driver_sql(BESIDE, keys | of)))


def _is_counted(draft: Draft) -> bool:
    """Return whether other runs of its job count, as the owner knows its policy."""
    if draft.said is None:
        return draft.terms.overlap_limit > 0
    return draft.said is not Overlap.ALLOW


def _is_plain(draft: Draft, row: Locked) -> bool:
    """Return whether the run never had a token, and its row has the draft's policy."""
    return row.token == 0 and row.overlap == draft.said


def _is_lined_up(draft: Draft) -> bool:
    return (draft.said or draft.terms.overlap) not in {Overlap.SKIP, Overlap.ALLOW}


def _skip(
    connection: Connection, tenure: TenureId, drafts: Sequence[Draft], ended: Sequence[RunKey]
) -> None:
    gone = set(ended)
    jobs = {draft.job_id: draft.shard for draft in drafts if draft.key in gone}
    of = {"jobs": arrays.ids(jobs), "shards": arrays.numbers(jobs.values()), "tenure": tenure}
    connection.exec_driver_sql(SKIP, key_arguments(ended) | of)


def read_payloads(connection: Connection, keys: Sequence[RunKey]) -> dict[RunId, bytes]:
    """Return the payloads of these runs. Read without a lock, as they never change."""
    rows = connection.exec_driver_sql(PAYLOADS, key_arguments(keys))
    return {run_id: bytes(payload) for run_id, payload in rows if payload is not None}


def _arguments(
    drafts: Sequence[Draft],
    tokens: Sequence[Token],
    beside: Collection[JobId],
    locked: Sequence[Locked],
) -> dict[str, object]:
    spots: list[str | None] = [None] * len(drafts)
    for one in locked:
        spots[one.n - 1] = one.spot
    return {
        "spots": arrays.spots(spots),
        "counted": arrays.flags(map(_is_counted, drafts)),
        "crowded": arrays.flags([draft.job_id in beside for draft in drafts]),
        "jobs": arrays.ids([draft.job_id for draft in drafts]),
        "shards": arrays.numbers([draft.shard for draft in drafts]),
        "generations": arrays.numbers([draft.terms.generation for draft in drafts]),
        "tokens": arrays.numbers(tokens),
        "workers": arrays.texts([draft.terms.worker or None for draft in drafts]),
        "incarnations": arrays.ids([draft.terms.incarnation for draft in drafts]),
        "limits": arrays.numbers([draft.terms.overlap_limit for draft in drafts]),
        "policies": arrays.texts([draft.terms.overlap.value for draft in drafts]),
        "start_limits": arrays.numbers(
            [draft.terms.start_by_after.total_seconds() for draft in drafts]
        ),
    }


def _assigned(draft: Draft, token: Token, columns: Sequence[Any]) -> LiveRun:
    priority, due_at, ready_at, attempt, losses, start_by, created_at, _ = columns
    return LiveRun(
        draft.key,
        draft.job_id,
        draft.shard,
        State.RUNNING,
        Priority(priority),
        due_at,
        ready_at,
        attempt,
        losses,
        token,
        draft.terms.worker,
        draft.terms.incarnation,
        start_by,
        generation=draft.terms.generation,
        created_at=created_at,
        parent=draft.parent,
        target=draft.terms.worker if draft.parent else None,
    )
