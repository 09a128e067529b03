"""Losses and changes of leader are rows, written by the transaction of the change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from itertools import pairwise

import pytest

from schedd.api.views import cluster_event
from schedd.core.cluster.cluster_events import ClusterEventRecord, EventKind, text_of
from schedd.core.ids import Id, IncarnationId, TenureId, Term, new_id
from schedd.core.runs.model import Incarnation, Tenure
from schedd.store.cluster.workers import forget_lost
from support.store import MINUTE, START, World, incarnation, job_record

DAY = timedelta(hours=24)


@pytest.fixture(autouse=True)
async def _of_a_member(world: World) -> None:
    await world.member(take=False)


async def seen(world: World, one: Incarnation) -> Incarnation:
    """Register it, with a key in etcd."""
    stored = await world.store.workers.register(one)
    await world.store.workers.note_seen([one.id])
    return stored


async def events(world: World) -> list[ClusterEventRecord]:
    return await world.store.membership.events_after(0)


async def names(world: World, kept: timedelta = DAY) -> tuple[list[str], list[str]]:
    found = await world.store.membership.losses(kept)
    return [one.name for one in found.members], [one.worker for one in found.workers]


async def leading_term(world: World, tenure: TenureId) -> Term:
    term = await world.store.membership.raise_term(await world.store.membership.read_term(), tenure)
    assert term is not None
    return term


async def opened(world: World, name: str, number: int) -> TenureId:
    tenure = Tenure(TenureId(new_id()), name, START + number * MINUTE, grpc=f"{name}:7420")
    await world.store.membership.open_tenure(tenure)
    return tenure.id


async def test_a_change_of_leader_is_an_event_and_a_line_of_the_audit_log(world: World) -> None:
    first, second = await opened(world, "one", 0), await opened(world, "two", 1)
    await leading_term(world, first)
    term = await leading_term(world, second)

    *_, event = await events(world)

    assert (event.kind, event.object, event.actor) == (
        EventKind.LEADER_CHANGED,
        "cluster/leader",
        "member/two",
    )
    assert event.detail == f"two leads, term {term}; before: one"
    [(_, line), _] = await world.store.users.list_audit("leader-changed", None, None, None, 10)
    assert (line.object, line.actor, line.outcome) == ("cluster/leader", "member/two", "ok")


async def test_a_member_that_the_leader_fences_is_lost_until_it_returns(world: World) -> None:
    leader, lost = await opened(world, "one", 0), await opened(world, "two", 0)
    term = await leading_term(world, leader)
    assert await world.store.membership.fence([lost], term)

    assert await names(world) == (["two"], [])
    [one] = (await world.store.membership.losses(DAY)).members
    assert (one.tenure, one.grpc) == (lost, "two:7420")
    assert (await names(world, timedelta(0)))[0] == [], "past the retention it isn't listed"

    await opened(world, "two", 1)

    assert await names(world) == ([], [])
    assert [event.kind for event in await events(world)] == [
        EventKind.LEADER_CHANGED,
        EventKind.MEMBER_LOST,
        EventKind.MEMBER_RETURNED,
    ]


async def test_fencing_twice_records_one_loss(world: World) -> None:
    leader, lost = await opened(world, "one", 0), await opened(world, "two", 0)
    term = await leading_term(world, leader)

    assert await world.store.membership.fence([lost], term)
    assert await world.store.membership.fence([lost], term)

    assert [event.kind for event in await events(world)].count(EventKind.MEMBER_LOST) == 1


async def test_a_goodbye_is_not_a_loss_and_a_tenure_ended_for_a_reason_is(
    world: World,
) -> None:
    left, ended = await opened(world, "one", 0), await opened(world, "two", 0)

    await world.store.membership.fence_own(left)
    await world.store.membership.fence_own(ended, "the lease is lost")

    assert await names(world) == (["two"], [])
    [event] = await events(world)
    assert (event.reason, event.detail) == ("TENURE_ENDED", "the lease is lost")


async def joined(world: World, name: str, minute: int, prefix: Id, *, fenced: bool = False) -> None:
    tenure = Tenure(TenureId(new_id()), name, START + minute * MINUTE, prefix=prefix)
    await world.store.membership.open_tenure(tenure)
    if fenced:
        await world.store.membership.fence_own(tenure.id, "its lease ended")


async def test_members_from_before_a_new_claim_of_the_prefix_arent_of_another_cluster(
    world: World,
) -> None:
    """Etcd lost its data, or `claim-prefix` was run: the prefix has a new id."""
    before, own = new_id(), new_id()
    await joined(world, "m1", 0, before, fenced=True)
    await joined(world, "m2", 0, before, fenced=True)
    await joined(world, "m3", 0, before)
    await joined(world, "m1", 1, own)
    assert await world.store.membership.foreign_members(own) == []


async def test_members_from_before_a_restore_of_etcd_arent_of_another_cluster(world: World) -> None:
    own, meanwhile = new_id(), new_id()
    await joined(world, "m1", 0, own, fenced=True)
    await joined(world, "m1", 1, meanwhile, fenced=True)
    await joined(world, "m1", 2, own)
    assert await world.store.membership.foreign_members(own) == []


async def test_members_that_join_under_another_prefix_are_found_from_both(world: World) -> None:
    """Each cluster fences the members of the other one, and these join again."""
    one, other = new_id(), new_id()
    await joined(world, "m1", 0, one, fenced=True)
    await joined(world, "m1", 1, other)
    await joined(world, "m7", 2, other, fenced=True)
    await joined(world, "m2", 3, one)
    assert await world.store.membership.foreign_members(one) == ["m1", "m7"]
    assert await world.store.membership.foreign_members(other) == ["m2"]


async def test_a_lost_worker_is_listed_until_a_later_incarnation_has_a_key(world: World) -> None:
    workers = world.store.workers
    one = await seen(world, incarnation(worker="w1", host="h1"))

    await workers.lose([one.id], EventKind.WORKER_LOST)
    await workers.lose([one.id], EventKind.WORKER_LOST)

    assert await names(world) == ([], ["w1"])
    later = replace(one, id=IncarnationId(new_id()), started_at=one.started_at + MINUTE)
    await workers.register(later)
    assert await names(world) == ([], ["w1"]), "it can't serve yet"
    await workers.note_seen([later.id])
    await workers.note_seen([later.id])
    assert await names(world) == ([], [])
    kinds = [event.kind for event in await events(world)]
    assert kinds == [EventKind.WORKER_LOST, EventKind.WORKER_RETURNED]


async def test_the_member_that_records_a_loss_is_the_actor_and_the_event_has_the_reason(
    world: World,
) -> None:
    leader, owner = await opened(world, "m1", 0), await opened(world, "m2", 0)
    await leading_term(world, leader)
    for name, by in (("w1", None), ("w2", owner)):
        one = await seen(world, incarnation(worker=name, host="h1"))
        await world.store.workers.lose([one.id], EventKind.WORKER_LOST, by)
    lost = [event for event in await events(world) if event.kind == EventKind.WORKER_LOST]
    assert [(event.object, event.actor) for event in lost] == [
        ("worker/w1", "member/m1"),
        ("worker/w2", "member/m2"),
    ]
    assert text_of(lost[0]) == "worker w1 lost: lease expired, host h1"


async def test_each_return_of_one_process_resolves_its_last_loss(world: World) -> None:
    """A suspended worker registers again with the same start time and a random id."""
    workers = world.store.workers
    one = incarnation(worker="w1")
    for number in (9, 1, 8, 2, 7, 3):
        own = await seen(world, replace(one, id=IncarnationId(Id.from_int(number))))
        assert await names(world) == ([], [])
        await workers.lose([own.id], EventKind.WORKER_LOST)
        [(lost,)] = await world.sql("SELECT lost_at FROM incarnations WHERE id = %s", own.id)
        [listed] = (await world.store.membership.losses(DAY)).workers
        assert listed.lost_at == lost
        await world.sql(
            "UPDATE incarnations SET lost_at = lost_at - %s::interval WHERE id = %s",
            f"{number} min",
            own.id,
        )
    last = await seen(world, replace(one, id=IncarnationId(Id.from_int(5))))

    assert await names(world) == ([], [])
    times = await world.sql(
        "SELECT lost_at FROM incarnations WHERE id <> %s ORDER BY seen_at", last.id
    )
    returns = [event for event in await events(world) if event.kind == EventKind.WORKER_RETURNED]
    assert returns[-1].detail == f"lost since {times[-1][0].astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    [(_, line), *_] = await world.store.users.list_audit("worker-returned", None, None, None, 10)
    assert returns[-1].detail in line.after


async def test_the_newest_loss_of_a_member_is_listed_though_an_older_tenure_is_fenced_later(
    world: World,
) -> None:
    leader, older = await opened(world, "one", 0), await opened(world, "two", 0)
    newer = await opened(world, "two", 1)
    term = await leading_term(world, leader)
    assert await world.store.membership.fence([newer], term)
    assert await world.store.membership.fence([older], term)

    [listed] = (await world.store.membership.losses(DAY)).members
    assert listed.tenure == newer


async def test_returns_within_the_retention_are_counted(world: World) -> None:
    leader, lost = await opened(world, "one", 0), await opened(world, "two", 0)
    assert await world.store.membership.fence([lost], await leading_term(world, leader))
    assert await world.store.membership.returns(DAY) == (0, 0)
    await opened(world, "two", 1)
    assert await world.store.membership.returns(DAY) == (1, 0)
    assert await world.store.membership.returns(timedelta(0)) == (0, 0)


async def test_a_worker_that_says_goodbye_is_not_lost(world: World) -> None:
    one = await seen(world, incarnation(worker="w1"))

    await world.store.workers.lose([one.id], None)

    assert await names(world) == ([], [])
    assert await events(world) == []


@pytest.mark.parametrize("kind", [EventKind.WORKER_LOST, EventKind.WORKER_RESTARTED])
async def test_an_incarnation_that_never_had_a_key_ends_without_an_event(
    world: World, kind: EventKind
) -> None:
    """Etcd took no writes, the worker was turned away, or an older version left the row."""
    one = await world.store.workers.register(incarnation(worker="w1"))
    assert [each.seen for each in await world.store.workers.registered()] == [False]

    await world.store.workers.lose([one.id], kind)

    assert await names(world) == ([], [])
    assert await world.store.workers.registered() == []
    assert await events(world) == []


async def test_a_loss_stays_listed_while_later_incarnations_get_no_key(world: World) -> None:
    one = await seen(world, incarnation(worker="w1"))
    await world.store.workers.lose([one.id], EventKind.WORKER_LOST)
    for number in (1, 2):
        later = replace(
            one, id=IncarnationId(new_id()), started_at=one.started_at + number * MINUTE
        )
        await world.store.workers.register(later)
        await world.store.workers.lose([later.id], EventKind.WORKER_LOST)

    assert await names(world) == ([], ["w1"])
    assert [event.kind for event in await events(world)] == [EventKind.WORKER_LOST]


async def test_events_of_a_kind_that_a_newer_version_wrote_are_read_as_text(world: World) -> None:
    before = await world.store.changes.now()
    await world.sql(
        "INSERT INTO cluster_events (kind, object, actor, reason, detail)"
        " VALUES ('member-promoted', 'member/m7', 'member/m1', '', 'by hand')"
    )

    [event] = await events(world)
    [streamed] = (await world.store.changes.since(before, None)).events

    assert text_of(event) == text_of(streamed) == "m7: member promoted: by hand"
    assert cluster_event(event).kind == "member-promoted"


async def test_a_stream_finds_the_events_of_transactions_after_its_cursor(world: World) -> None:
    changes = world.store.changes
    before = await changes.now()
    one = await opened(world, "one", 0)
    await leading_term(world, one)
    between = await changes.now()
    await world.store.membership.fence_own(one, "the lease is lost")

    first, second = await changes.since(before, None), await changes.since(between, None)

    assert [event.kind for event in first.events] == [
        EventKind.LEADER_CHANGED,
        EventKind.MEMBER_LOST,
    ]
    assert [event.kind for event in second.events] == [EventKind.MEMBER_LOST]


async def test_old_incarnations_are_deleted_in_parts_and_the_newest_of_each_worker_stays(
    world: World,
) -> None:
    """Each part reads some workers, and not the whole table."""
    lost = {"often": (10_003, "2 hours"), **{f"w{n:03}": (3, "91 days") for n in range(50)}}
    for worker, (count, ago) in lost.items():
        await world.sql(
            "INSERT INTO incarnations (id, worker, spool_id, host, version, slots, labels,"
            " handlers, actions, started_at, lost_at) SELECT gen_random_uuid(), %s, '', '', '', 1,"
            " '{}', '{}', '{}', now() - %s::interval - n * interval '1 s',"
            " now() - %s::interval FROM generate_series(1, %s) n",
            worker,
            ago,
            ago,
            count,
        )
    parts: list[int] = []
    after: str | None = ""
    while after is not None:
        after = await world.store.database.call(partial(forget_lost, after=after, limit=50))
        [(left,)] = await world.sql("SELECT count(*) FROM incarnations")
        parts.append(left)

    assert max(a - b for a, b in pairwise(parts)) <= 50
    rows = await world.sql("SELECT worker, count(*) FROM incarnations GROUP BY 1")
    assert dict(map(tuple, rows)) == {"often": 10_000, **{f"w{n:03}": 1 for n in range(50)}}


async def test_jobs_that_failed_three_times_in_a_row_are_found_and_others_are_not(
    world: World,
) -> None:
    me = await world.member()
    states = {"bad": "FFF", "late": "SFFFF", "fixed": "FFFS", "twice": "SFF"}
    names_of = {}
    for name, ended in states.items():
        job = job_record()
        await world.jobs([job])
        job_id = job.definition.job_id
        names_of[job_id] = name
        for at, state in enumerate(ended):
            await world.sql(
                "INSERT INTO runs (scheduled_at, run_id, job_id, due_at, created_at, shard,"
                " priority, trigger, state, ready_at, generation, finished_at)"
                " VALUES (%s, %s, %s, %s, now(), 0, 1, 'SCHEDULE', %s, now(), 1, now())",
                START + at * MINUTE,
                (run := new_id()),
                job_id,
                START,
                {"F": "FAILED", "S": "SUCCEEDED"}[state],
            )
            if state == "F":
                await world.sql(
                    "INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint, died_at)"
                    " VALUES (%s, %s, %s, '', now())",
                    run,
                    START + at * MINUTE,
                    job_id,
                )

    found = await me.store.users.failing()

    assert {names_of[one.job_id]: one.times for one in found} == {"bad": 3, "late": 4}


async def test_a_job_whose_backlog_grows_is_found(
    world: World,
) -> None:
    me = await world.member()
    job = job_record()
    await world.jobs([job])
    await world.sql(
        "WITH made AS (INSERT INTO runs (scheduled_at, run_id, job_id, due_at, created_at, shard,"
        " priority, trigger, state, ready_at, generation) SELECT %s::timestamptz + n * interval"
        " '1 s', gen_random_uuid(), %s, %s, now(), 0, 1, 'SCHEDULE', 'PENDING', now(), 1"
        " FROM generate_series(1, 120) n RETURNING scheduled_at, run_id, job_id)"
        " INSERT INTO live SELECT 0, job_id, run_id, scheduled_at FROM made",
        START,
        job.definition.job_id,
        START,
    )

    [found] = await me.store.users.growing()

    assert (found.job_id, found.runs, found.made, found.ended) == (
        job.definition.job_id,
        120,
        120,
        0,
    )
