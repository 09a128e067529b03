"""Joins at jobs of the owned shards: create the child's run when its parents of a cycle have ended.

    due joins, read ─→ definitions ─→ the parents' results, if requested
              ─→ one transaction a lane: evaluate, insert, delete events ─→ run index

The statement evaluates each join once (`store/results/chain_joins.py`); this loop only calls it. It
reads often, because a chain is only as fast as its joins are found. While no job has parents, it
waits (`reconcile/pending_work.py`).
"""

import base64
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NoReturn, TypeAlias

from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.cluster.owner_transactions import Failed
from schedd.core.ids import JobId, RunId
from schedd.core.jobs.chains import ChainJoin, ChainParents, Cycle, ParentEnded, Wanted
from schedd.core.jobs.definition import Definition, Delivery
from schedd.core.runs.redrive import line_of
from schedd.dispatch.owner_context import OwnerContext, OwnerPart
from schedd.runtime.definition_texts import CachedDefinition
from schedd.store.results.chain_joins import ChainStore
from schedkit.errors import TookTooLong
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop
from schedproto.v1 import common_pb2, run_pb2

# The parents' results as the payload of the child's run. Pure.
#
#     one parent      its result as it is; null if it has none
#     several         {"a": …, "b": …} by their names; bytes as {"base64": …}
#
# A payload is bounded. A result that no longer fits, in the order of the parents' names, or that is
# in the result store, is null. Its parent is named under `_left_out`, which can't be a job's name.

LEFT_OUT: Final = "_left_out"
_SPARE: Final = 16 * 1024
"""Bytes reserved for the names of parents whose results are left out."""


def handed_on(
    after: ChainParents, ended: Iterable[ParentEnded], results: Mapping[RunId, bytes]
) -> bytes:
    """Return the serialized payload of a run that follows these parents' runs."""
    by_name = {one.job: results.get(one.run_id) for one in ended}
    if len(after.jobs) == 1:
        [name] = after.jobs
        result = by_name.get(name)
        if result is None:
            return _json("null")
        return _json(_mapped({name: result})) if _is_elsewhere(result) else result
    return _json(_mapped({name: by_name.get(name) for name in after.jobs}))


def _mapped(results: Mapping[str, bytes | None]) -> str:
    """Return the map as JSON; results are copied into it unchanged."""
    parts: list[str] = []
    left_out: list[str] = []
    room = MAX_PAYLOAD - _SPARE
    for name in sorted(results):
        result = results[name]
        elsewhere = result is not None and _is_elsewhere(result)
        text = "null" if result is None or elsewhere else _text(result)
        part = f"{json.dumps(name)}: {text}"
        if elsewhere or len(part.encode()) + 2 > room:
            left_out.append(name)
            part = f"{json.dumps(name)}: null"
        room -= len(part.encode()) + 2
        parts.append(part)
    if left_out:
        parts.append(f"{json.dumps(LEFT_OUT)}: {json.dumps(left_out)}")
    return "{" + ", ".join(parts) + "}"


def _text(result: bytes) -> str:
    payload = common_pb2.Payload.FromString(result)
    if payload.raw:
        return json.dumps({"base64": base64.b64encode(payload.raw).decode()})
    try:
        json.loads(payload.json, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return json.dumps(payload.json)
    return payload.json


def _is_elsewhere(result: bytes) -> bool:
    """Return whether the result was too large for a row."""
    return run_pb2.StoredResult.FromString(result).HasField("object")


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"the parent's result contains the number {constant}, which isn't valid JSON")


def _json(text: str) -> bytes:
    return common_pb2.Payload(json=text).SerializeToString()


# Joins that time out: found by bisection, then evaluated alone, with a growing backoff.
#
#     a transaction timed out ─→ its joins are suspects ─→ half of them, half of those, …
#                                             └─→ one join: put off, each time for twice as long
#     the others ──────────→ evaluated meanwhile, without it
#
# Invariants
# - A join that timed out shares no transaction with others: they would fail too.
# - A step tries suspects and known slow joins after all others, so no other join waits for them.
# - A forgotten slow join is found again.

Key: TypeAlias = tuple[JobId, Cycle]

PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(hours=1)
KNOWN: Final = 1_000
"""Slow joins that are remembered."""


def key_of(join: ChainJoin) -> Key:
    return join.child, join.cycle


def pause_after(times: int) -> timedelta:
    """Return the backoff of a join that timed out so many times in a row."""
    doubled: timedelta = PAUSE * 2 ** min(times - 1, 16)
    return min(LONGEST_PAUSE, doubled)


class SlowJoins:
    """Groups joins into transactions by how long they took before."""

    def __init__(self) -> None:
        self._suspects: set[Key] = set()
        self._times: dict[Key, int] = {}
        """How often in a row each known slow join timed out alone."""

    def parts(self, wanted: Sequence[Wanted]) -> list[list[Wanted]]:
        """Return the joins of this step, one transaction for each part."""
        plain: list[Wanted] = []
        suspects: list[Wanted] = []
        known: list[Wanted] = []
        for one in wanted:
            key = key_of(one.join)
            kind = known if key in self._times else suspects if key in self._suspects else plain
            kind.append(one)
        tried = suspects[: (len(suspects) + 1) // 2] or known[:1]
        return [part for part in (plain, tried) if part]

    def waiting_joins(self, wanted: Sequence[Wanted], judged: Collection[Key]) -> list[ChainJoin]:
        """Return known slow joins that wait for another step: others are read meanwhile."""
        keys = ((one.join, key_of(one.join)) for one in wanted)
        return [join for join, key in keys if key in self._times and key not in judged]

    def done(self, judged: Sequence[Wanted]) -> None:
        """Note that the transaction of these joins completed."""
        for one in judged:
            key = key_of(one.join)
            self._suspects.discard(key)
            if self._times.pop(key, None):
                log.info("slow chain evaluated: job=%s cycle=%s", *_logged(one.join))

    def failed(self, parts: Sequence[Sequence[Wanted]]) -> list[tuple[ChainJoin, timedelta]]:
        """Note that the transactions of these parts timed out. Return joins that timed out alone,
        each with its backoff.
        """
        many = [part for part in parts if len(part) > 1]
        if many:
            self._suspects = {key_of(one.join) for part in many for one in part}
        return [self._alone(part[0].join) for part in parts if len(part) == 1]

    def _alone(self, join: ChainJoin) -> tuple[ChainJoin, timedelta]:
        key = key_of(join)
        times = self._times.pop(key, 0) + 1
        if times == 1:
            log.warning(
                "chain evaluation timed out: job=%s cycle=%s; it is retried with a growing backoff."
                " If PostgreSQL's statistics are old, run ANALYZE on the tables runs, live and"
                " chain_arrivals",
                *_logged(join),
            )
        self._suspects.discard(key)
        self._times[key] = times
        while len(self._times) > KNOWN:
            del self._times[next(iter(self._times))]
        return join, pause_after(times)


def _logged(join: ChainJoin) -> tuple[JobId, datetime]:
    return join.child, join.cycle.scheduled_at


log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.25
WITHOUT_CHAINS: Final = 60.0
"""Seconds until the next round while no job has parents."""
WHILE_FED: Final = 0.02
"""Seconds until the next round after one that found something."""
MOST_RESULTS: Final = 64
"""Parents' results that one step reads at most: 4 MiB."""
STUCK_FOR: Final = timedelta(seconds=30)
"""Backoff of a join that can't be evaluated: its job's definition can't be read, or the database
rejects it. Other joins have their turn meanwhile.
"""
MOST_TRIES: Final = 5


class Chains(OwnerPart):
    def __init__(self, context: OwnerContext, chain_store: ChainStore) -> None:
        super().__init__(context)
        self._chain_store = chain_store
        self._tried: dict[Key, int] = {}
        """Joins evaluated in consecutive rounds that are still due, with the number of rounds."""
        self._slow = SlowJoins()
        self._exist = True
        self.loop = Loop("chains", self.step, interval=LOOK_EVERY)
        self._run_index.ownership.listen(
            lambda gained, _dropped: self.loop.wake() if gained else None
        )

    def set_exist(self, exist: bool) -> None:
        """Record whether any job has parents."""
        if exist and not self._exist:
            self.loop.wake()
        self._exist = exist

    async def step(self) -> float:
        """Evaluate due joins; return the seconds until the next round."""
        shards = sorted(self._run_index.ownership.epochs)
        due = await self._chain_store.due(shards) if shards else []
        here = {key_of(one) for one in due}
        self._tried = {key: times for key, times in self._tried.items() if key in here}
        if not due:
            return LOOK_EVERY if self._exist else WITHOUT_CHAINS
        # A join that is due again may have been refused because of an outdated definition.
        self._definition_cache.forget({child for child, _ in self._tried})
        known = await self._definition_cache.newest({one.child for one in due})
        wanted = await self._wanted(due, known)
        later: dict[timedelta, list[ChainJoin]] = {}
        judged: set[Key] = set()
        for part in self._slow.parts(wanted):
            judged |= {key_of(one.join) for one in part}
            for join, wait in await self._judge(part):
                later.setdefault(wait, []).append(join)
        later.setdefault(STUCK_FOR, []).extend(
            [
                *(one for one in due if self._is_stuck(one, known.get(one.child))),
                *self._slow.waiting_joins(wanted, judged),
            ]
        )
        for wait, joins in later.items():
            if joins:
                put_off = partial(self._chain_store.put_off, wait=wait)
                await self._transactor.rows(joins, put_off)
        return WHILE_FED

    async def _judge(self, part: Sequence[Wanted]) -> list[tuple[ChainJoin, timedelta]]:
        """Evaluate these joins; return those that timed out, each with its backoff."""
        answers = await self._transactor.by_lane(part, self._chain_store.join)
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        made = [run for runs in answers if not isinstance(runs, Failed) for run in runs]
        if self._run_index.put_runs(made, self._clock.now()):
            self._ready()
        for answer in failed:
            if not isinstance(answer.error, TookTooLong):
                raise answer.error
        out = {key_of(one.join) for answer in failed for one in answer.items}
        done = [one for one in part if key_of(one.join) not in out]
        for one in done:
            key = key_of(one.join)
            self._tried[key] = self._tried.get(key, 0) + 1
        self._slow.done(done)
        return self._slow.failed([answer.items for answer in failed])

    def _give_up(self, one: ChainJoin, _error: Exception) -> None:
        """Treat the join as stuck: it is put off for longer."""
        self._tried[one.child, one.cycle] = MOST_TRIES

    def _is_stuck(self, one: ChainJoin, entry: CachedDefinition | None) -> bool:
        readable = entry is not None and entry.definition.after is not None
        return not readable or self._tried.get(key_of(one), 0) >= MOST_TRIES

    async def _wanted(
        self, due: Sequence[ChainJoin], known: Mapping[JobId, CachedDefinition]
    ) -> list[Wanted]:
        """Return the joins that this step may evaluate, each with its payload."""
        chosen: list[tuple[ChainJoin, Definition]] = []
        results: set[RunId] = set()
        for one in due:
            entry = known.get(one.child)
            if entry is None or entry.definition.after is None:
                continue
            if entry.definition.after.with_output and len(results) >= MOST_RESULTS:
                continue
            chosen.append((one, entry.definition))
            if entry.definition.after.with_output:
                results |= {ended.run_id for ended in _ended_parents(one).values()}
        read = await self._chain_store.results(results) if results else {}
        wanted: list[Wanted] = []
        for one, definition in chosen:
            # A bad result delays no other job.
            with set_aside("chain", f"job {one.child}", then=partial(self._give_up, one)):
                wanted.append(_as_wanted(one, definition, read))
        return wanted


def _ended_parents(one: ChainJoin) -> Mapping[JobId, ParentEnded]:
    return {**one.skipped_by, **one.arrived}


def _as_wanted(one: ChainJoin, definition: Definition, results: Mapping[RunId, bytes]) -> Wanted:
    after = definition.after
    assert after is not None, "these alone were chosen"
    return Wanted(
        one,
        definition.generation,
        after,
        definition.priority.value,
        handed_on(after, _ended_parents(one).values(), results) if after.with_output else None,
        definition.delivery is Delivery.AT_MOST_ONCE,
        line_of(definition).overlap,
    )
