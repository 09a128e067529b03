"""Measurements that rows make themselves, beside what the checker judges of them all.

before = leadership(world)                            who leads, as PostgreSQL alone has it
taken = await_succession(world, dead, since)          seconds until others have what was theirs
fired(world, since, until)                            how many runs owners made of timers
with everyone_stays(world): …                          no lease or shard is given up meanwhile
latest(run, since, until)                             how late the latest of the probes was
behind(run, since, until)                             how late it was beside those due with it
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime

from faults.scenario import Run
from faults.world.world import World
from support.wait import wait_until

LEFT = """
SELECT
  (SELECT count(*) FROM shards s LEFT JOIN tenures t ON t.id = s.owner AND t.fenced_at IS NULL
   WHERE t.id IS NULL OR t.id = ANY (%s::uuid[]))
+ (SELECT count(*) FROM term l LEFT JOIN tenures t ON t.id = l.leader AND t.fenced_at IS NULL
   WHERE t.id IS NULL OR t.id = ANY (%s::uuid[]))
"""
"""Count shards, and the leadership, that only dead tenures hold."""

STALE = """
SELECT count(*) FROM audit WHERE action = 'result' AND outcome = 'refused' AND reason = 'STALE'
  AND worker = %s AND at >= to_timestamp(%s)
"""

FIRED = """
SELECT count(*) FROM runs WHERE fired_by IS NOT NULL
  AND created_at >= to_timestamp(%s) AND created_at < to_timestamp(%s)
"""

IN_HAND = "SELECT run_id::text FROM runs WHERE state = 'RUNNING' AND worker = %s"

UNSTARTED = """
SELECT r.run_id::text, r.token FROM runs r
JOIN shards s ON s.id = r.shard JOIN tenures t ON t.id = s.owner
WHERE t.member = %s AND t.fenced_at IS NULL AND r.state = 'RUNNING' AND r.started_at IS NULL
  AND r.assigned_at > clock_timestamp() - interval '1 s'
"""

STILL = """
SELECT count(*) FROM unnest(%s::uuid[], %s::bigint[]) left_over(run_id, token)
JOIN runs r USING (run_id, token) WHERE r.state = 'RUNNING' AND r.started_at IS NULL
"""

AT_ONCE = ("skip", "allow")
"""Policies of overlap by which a run begins when it is due, or never."""
WITHOUT_RESULT = """
SELECT coalesce(j.name, r.run_id::text) FROM runs r LEFT JOIN jobs j USING (job_id)
WHERE r.run_id = ANY (%s::uuid[]) AND r.digest IS NULL AND r.state <> 'SUCCEEDED'
  AND r.reason IS DISTINCT FROM 'BY_OVERLAP'
"""


def tenures_of(world: World, names: Collection[str]) -> list[str]:
    """Return the tenures of these members that aren't fenced."""
    rows = world.postgres.sql(
        "SELECT id::text FROM tenures WHERE member = ANY (%s) AND fenced_at IS NULL", [*names]
    )
    return [tenure for (tenure,) in rows]


def await_succession(world: World, dead: Collection[str], since: float, within: float) -> float:
    """Wait until every shard and the leadership are with tenures that live; seconds since `since`,
    which is of the monotonic clock.
    """
    gone = [*dead]

    def taken() -> bool:
        [(left,)] = world.postgres.sql(LEFT, gone, gone)
        return not left

    wait_until(taken, within, "others to have all that was the dead's", every=0.05)
    return time.monotonic() - since


def unstarted_of(world: World, member: str) -> dict[str, int]:
    """Runs that this member has just dispatched, and that haven't started: their tokens. No member
    may have taken its shards yet.
    """
    return {run: int(token) for run, token in world.postgres.sql(UNSTARTED, member)}


def still_unstarted(world: World, tokens: dict[str, int]) -> int:
    """How many of these runs haven't started, and have these tokens still."""
    [(count,)] = world.postgres.sql(STILL, [*tokens], [*tokens.values()])
    return int(count)


def leadership(world: World) -> tuple[int, str]:
    """The term and the tenure that leads."""
    [(term, leader)] = world.postgres.sql("SELECT term, leader::text FROM term")
    return int(term), str(leader)


@contextmanager
def leader_stays(run: Run) -> Iterator[None]:
    """No term begins from here to the end of the last quiet: no other member becomes leader, nor
    the leader again.
    """
    before = leadership(run.world)

    def stayed() -> None:
        after = leadership(run.world)
        assert after == before, f"term and leader went from {before} to {after}"

    run.at_end(stayed)
    yield


def terms(run: Run) -> list[int]:
    """The terms that have begun in this run, in their order."""
    run.keep_commits()
    file = run.directory / "commits.jsonl"
    rows = (
        change["row"]
        for line in file.read_text().splitlines()
        for change in json.loads(line)["changes"]
        if change["table"] == "term"
    )
    return [int(row["term"]) for row in rows]


def epochs(world: World) -> dict[int, tuple[int, int]]:
    """Shard → its epoch, and the timeline on which it was taken."""
    rows = world.postgres.sql("SELECT id, epoch, timeline FROM shards")
    return {int(shard): (int(epoch), int(timeline)) for shard, epoch, timeline in rows}


@contextmanager
def everyone_stays(world: World) -> Iterator[None]:
    """No member and no worker is given up in this block, no shard taken again, no term begun."""
    before = ownership_state(world)
    yield
    after = ownership_state(world)
    changed = [
        f"{what}: {before[what]!s:.200} became {after[what]!s:.200}"
        for what in before
        if before[what] != after[what]
    ]
    assert not changed, "; ".join(changed)


def ownership_state(world: World) -> dict[str, object]:
    """Return the leader, living tenures and incarnations, each shard's owner and epoch, and
    how many takings of shards there were.
    """
    return {
        "leader": leadership(world),
        "tenures": world.postgres.sql(
            "SELECT id::text FROM tenures WHERE fenced_at IS NULL ORDER BY id"
        ),
        "incarnations": world.postgres.sql(
            "SELECT id::text FROM incarnations WHERE lost_at IS NULL ORDER BY id"
        ),
        "shards": world.postgres.sql("SELECT id, owner::text, epoch FROM shards ORDER BY id"),
        "takings": world.postgres.sql("SELECT count(*) FROM shard_log"),
    }


def fired(world: World, since: float, until: float) -> int:
    """The runs that owners have made of due timers in this time, which are all still there."""
    [(count,)] = world.postgres.sql(FIRED, since, until)
    return int(count)


def latest(run: Run, since: float, until: float) -> float:
    """Seconds by which the latest first try of a probe was late, of those due in this time. What
    waits for an earlier run of its own job isn't counted: that takes as long on any day.
    """
    names = {probe.name for probe in run.mix if probe.overlap in AT_ONCE}
    late = [
        line["at"] - due
        for line in run.starts()
        if line["job"] in names
        and line["attempt"] == 1
        and since <= (due := datetime.fromisoformat(line["nominal"]).timestamp()) < until
    ]
    assert late, "no probe started that was due in this time"
    return max(late)


def behind(run: Run, since: float, until: float) -> float:
    """Seconds by which the latest of the each-second probes began after the first of those due at
    the same instant, which are in other shards: what starves the machine makes all of them late.
    What waits for an earlier run of its own job isn't counted.
    """
    at_once = (probe for probe in run.mix if probe.overlap in AT_ONCE)
    names = {probe.name for probe in at_once if probe.cron == "* * * * * *"}
    begun: dict[str, list[float]] = {}
    for line in run.starts():
        instant = line["nominal"]
        if (
            line["job"] in names
            and line["attempt"] == 1
            and (since <= datetime.fromisoformat(instant).timestamp() < until)
        ):
            begun.setdefault(instant, []).append(line["at"])
    assert begun, "no probe started that was due in this time"
    return max(max(at) - min(at) for at in begun.values())


def has_just_begun(run: Run, probe: str, within: float = 1.0) -> str:
    """The worker that began this probe within the last second, as soon as there is one: whose run
    lasts longer is sure to be in its hands.
    """
    name = f"{run.prefix}-{probe}"

    def found() -> str:
        since = time.time() - within
        begun = (line for line in run.starts() if line["job"] == name and line["at"] > since)
        return next((str(line["worker"]) for line in begun), "")

    return wait_until(found, 30, f"{probe} to begin")


def stale_results(world: World, worker: str, since: float) -> int:
    """The results of this worker that were refused and audited since."""
    [(count,)] = world.postgres.sql(STALE, worker, since)
    return int(count)


def in_hand(world: World, worker: str) -> list[str]:
    """The runs that are this worker's, and have no result yet."""
    return [run for (run,) in world.postgres.sql(IN_HAND, worker)]


def without_result(world: World, runs: Collection[str]) -> list[str]:
    """The jobs of those of these runs that have no accepted result, and weren't replaced by a newer
    run of theirs: that needs none, where their worker is dead.
    """
    return [job for (job,) in world.postgres.sql(WITHOUT_RESULT, [*runs])]
