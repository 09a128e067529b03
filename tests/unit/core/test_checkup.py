"""Rules of the checkup: a healthy cluster is ok; each problem has a reason and a remedy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schedd.core.checkup import examine
from schedd.core.checkup.facts import (
    BlockedLoop,
    DatabaseFacts,
    DatabaseSession,
    EtcdEndpoint,
    EtcdFacts,
    Facts,
    FailedRead,
    FullWorkers,
    GrowingQueue,
    HeldLock,
    MemberFacts,
    Replica,
    StuckJob,
    TableFacts,
    WorkFacts,
)
from schedd.core.checkup.finding import CheckupFinding, Severity
from schedd.core.cluster.cluster_events import Losses, LostMember
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.cluster.membership import EMPTY_VIEW, ClusterView, MemberView
from schedd.core.cluster.partition import assign
from schedd.core.ids import Epoch, Id, IncarnationId, JobId, TenureId, Term, Timeline
from schedd.core.runs.model import AuditRecord, ShardRow
from schedd.core.runs.records import SlotHolder, WorkerView
from schedd.core.timers.cluster_pauses import Pause
from support.store import incarnation

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MIB = 1024 * 1024
ONE = Timeline(1)
SETTINGS = {
    "statement_timeout": "3s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "2s",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "server_encoding": "UTF8",
    "search_path": '"$user", public',
}


def member(number: int, **changes: Any) -> MemberView:
    plain = MemberView(
        name=f"m{number}",
        tenure=TenureId(Id.from_int(number)),
        grpc=f"m{number}:7420",
        http="",
        weight=100,
        version="1.0",
        tzdata="2026a",
        draining=False,
        attached=True,
    )
    return replace(plain, **changes)


def seen(*members: MemberView, **changes: Any) -> ClusterView:
    members = members or (member(1), member(2), member(3))
    view = replace(
        EMPTY_VIEW,
        members=members,
        leader=members[0].tenure,
        term=Term(7),
        workers=frozenset({IncarnationId(Id.from_int(9))}),
        timeline=ONE,
    )
    return replace(view, **changes)


def rows(view: ClusterView) -> tuple[ShardRow, ...]:
    return tuple(
        ShardRow(shard, tenure, Epoch(1), ONE) for shard, tenure in assign(view.members).items()
    )


def endpoint(number: int, **changes: Any) -> EtcdEndpoint:
    plain = EtcdEndpoint(f"e{number}:2379", version="3.6.1", size=9 * MIB, in_use=4 * MIB)
    return replace(plain, **changes)


def stored(**changes: Any) -> DatabaseFacts:
    settings = SETTINGS | changes.pop("settings", {})
    plain = DatabaseFacts(
        180001,
        settings,
        timeline=ONE,
        connections=20,
        schema="0002",
        wanted_schema="0002",
        schemas=("public",),
        copies=("public",),
        wal=80 * MIB,
    )
    return replace(plain, **changes)


HELD = HeldLock(DatabaseSession(7, "ann", "psql"), ("t",), ("ShareLock",), True, NOW)
BLOCKED = BlockedLoop("export", "r1", 41.0, "night.py:11 in export")
ALL_BLOCKED = "handlers block all 8 event loops of this worker: export"


def worker(name: str, version: str, **changes: Any) -> WorkerView:
    found = incarnation(id=IncarnationId(Id.from_int(1)), worker=name, version=version)
    return WorkerView(found, False, free=1, running=0, lease_age=0.0, **changes)


W1 = worker("w1", "1.0", disk_free=9000 * MIB)


def healthy(view: ClusterView | None = None, **changes: Any) -> Facts:
    view = view or seen()
    facts = Facts(
        now=NOW,
        version="1.0",
        view=view,
        etcd=EtcdFacts((endpoint(1, leads=True), endpoint(2), endpoint(3))),
        database=stored(),
        rows=rows(view),
        members=tuple(map(MemberFacts, view.members)),
        workers=(W1,),
    )
    return replace(facts, **changes)


def with_first(first: MemberView | None = None, **changes: Any) -> tuple[MemberFacts, ...]:
    """Return the facts of all members, with these changes in the first."""
    found = [MemberFacts(one) for one in seen().members]
    return (replace(found[0], **({"view": first} if first else {}), **changes), *found[1:])


def wrong(facts: Facts) -> list[CheckupFinding]:
    return [finding for finding in examine(facts) if finding.severity is not Severity.OK]


def test_healthy_areas_are_reported_as_ok() -> None:
    findings = list(examine(healthy()))
    assert wrong(healthy()) == []
    assert {one.area for one in findings} >= {
        "etcd",
        "postgres",
        "cluster",
        "members",
        "clocks",
        "workers",
    }
    assert not [one for one in findings if one.why or one.remedy]


AWAY = endpoint(1, away="connection refused")
LEFT = timedelta(days=3)
WARN, BAD = Severity.WARN, Severity.BAD
DUPLICATE = AuditRecord(
    "worker/w1", "attach", "worker/w1", "refused", reason="SECOND_IDENTITY", source="h2", at=NOW
)

TROUBLES: list[tuple[str, Facts, Severity, str]] = [
    ("one of three endpoints is away",
     healthy(etcd=EtcdFacts((AWAY, endpoint(2), endpoint(3)))), WARN, "etcd: answers"),
    ("two of three are away",
     healthy(etcd=EtcdFacts((AWAY, replace(AWAY, endpoint="e2"), endpoint(3)))), BAD,
     "etcd: answers"),
    ("etcd has no leader",
     healthy(etcd=EtcdFacts((endpoint(1, has_leader=False),))), BAD, "etcd: answers"),
    ("etcd is slow", healthy(etcd=EtcdFacts((endpoint(1, took=0.4),))), WARN, "etcd: answers"),
    ("etcd raised an alarm",
     healthy(etcd=EtcdFacts((endpoint(1, problems=("NOSPACE",)),))), BAD, "etcd: alarms"),
    ("etcd is nearly full",
     healthy(etcd=EtcdFacts((endpoint(1, size=1900 * MIB, in_use=1800 * MIB),))), WARN,
     "etcd: size"),
    ("etcd is mostly empty pages",
     healthy(etcd=EtcdFacts((endpoint(1, size=400 * MIB, in_use=10 * MIB),))), WARN,
     "etcd: size"),
    ("an etcd that corrupts",
     healthy(etcd=EtcdFacts((endpoint(1, version="3.5.1"),))), WARN, "etcd: versions"),
    ("two versions of etcd",
     healthy(etcd=EtcdFacts((endpoint(1), endpoint(2, version="3.5.9")))), WARN,
     "etcd: versions"),
    ("revisions went back",
     healthy(etcd=EtcdFacts((endpoint(1),), NOW)), WARN, "etcd: revisions"),
    ("the asked member's lease isn't trusted", healthy(trusted=False), BAD, "cluster: view"),
    ("the database is away", healthy(database=FailedRead("refused")), BAD, "postgres: answers"),
    ("an old PostgreSQL", healthy(database=stored(version=130004)), BAD, "postgres: version"),
    ("an old schema", healthy(database=stored(schema="0001")), BAD, "postgres: schema"),
    ("too new a schema", healthy(database=stored(schema="0009")), BAD, "postgres: schema"),
    (
        "a newer schema that admits this member",
        healthy(database=stored(schema="0003", schema_admits=True)),
        WARN,
        "postgres: schema",
    ),
    ("an encoding that lacks letters",
     healthy(database=stored(settings={"server_encoding": "LATIN1"})), BAD,
     "postgres: encoding"),
    ("tables of two schemas",
     healthy(database=stored(schemas=("public", "schedd"))), BAD, "postgres: search path"),
    ("a second copy of the tables",
     healthy(database=stored(schemas=("schedd",), copies=("public", "schedd"))), WARN,
     "postgres: search path"),
    ("a standby", healthy(database=stored(in_recovery=True)), BAD, "postgres: timeline"),
    ("another timeline",
     healthy(database=stored(timeline=Timeline(2))), WARN, "postgres: timeline"),
    ("a timeout is unset",
     healthy(database=stored(settings={"lock_timeout": "0"})), WARN, "postgres: timeouts"),
    ("a commit isn't durable",
     healthy(database=stored(settings={"synchronous_commit": "off"})), BAD,
     "postgres: durability"),
    ("connections run out",
     healthy(database=stored(connections=90)), WARN, "postgres: connections"),
    ("replication is asynchronous",
     healthy(database=stored(replicas=(Replica("s1", "streaming", "async", 0),))), WARN,
     "postgres: replication"),
    ("a standby is far behind",
     healthy(database=stored(replicas=(Replica("s1", "streaming", "sync", 900 * MIB),))), WARN,
     "postgres: replication"),
    ("the state of a standby is hidden",
     healthy(database=stored(replicas=(Replica("s1", "", "", 0),), user="schedd")), WARN,
     "postgres: replication"),
    ("a slot without a reader",
     healthy(database=stored(idle_slots=("old",))), WARN, "postgres: replication slots"),
    ("a session idles in a transaction",
     healthy(database=stored(oldest_transaction=900.0)), WARN, "postgres: oldest transaction"),
    ("the age of a transaction is hidden",
     healthy(database=stored(hidden=(DatabaseSession(7, "ann"),), user="schedd")), WARN,
     "postgres: oldest transaction"),
    ("a session locks a table", healthy(locks=(HELD,)), BAD, "postgres: locks"),
    ("locks can't be read", healthy(locks=FailedRead("no answer")), WARN, "postgres: locks"),
    ("a lock keeps tables from being read", healthy(unread=FailedRead("no answer")), BAD,
     "postgres: tables"),
    ("vacuum is held back",
     healthy(database=stored(held_back=5_000_000)), WARN, "postgres: oldest transaction"),
    ("WAL of an unknown size", healthy(database=stored(wal=None)), WARN, "postgres: WAL"),
    ("much WAL", healthy(database=stored(wal=40_000 * MIB)), WARN, "postgres: WAL"),
    ("dead rows",
     healthy(database=stored(tables=(TableFacts("live", 10, 50_000),))), WARN,
     "postgres: dead rows"),
    ("transaction ids run out",
     healthy(database=stored(age=1_500_000_000)), BAD, "postgres: transaction ids"),
    ("tomorrow has no partition",
     healthy(database=stored(missing_days=1)), WARN, "postgres: partitions"),
    ("no leader", healthy(seen(leader=None)), BAD, "cluster: leader"),
    ("a shard without an owner",
     healthy(rows=(replace(rows(seen())[0], owner=None), *rows(seen())[1:])), BAD,
     "cluster: shards"),
    ("a shard isn't where it should be",
     healthy(rows=tuple(replace(row, owner=member(1).tenure) for row in rows(seen()))), WARN,
     "cluster: balance"),
    ("it is paused", healthy(pause=Pause(NOW, "ops", "disks")), WARN, "cluster: pause"),
    ("a stray key", healthy(seen(unreadable=("members/x",))), WARN, "cluster: keys"),
    ("a member doesn't answer", healthy(members=with_first(away="timed out")), WARN,
     "members: answers"),
    ("a member lost the database",
     healthy(members=with_first(member(1, database=False), seconds_since_database=9.0)), BAD,
     "members: answers"),
    ("a member has no trust", healthy(members=with_first(trusted=False)), BAD, "members: answers"),
    ("a wall clock is off",
     healthy(members=with_first(wall_offset=timedelta(hours=-1))), WARN, "clocks: wall clock"),
    ("cluster time is off",
     healthy(members=with_first(cluster_offset=timedelta(seconds=2))), BAD, "clocks: cluster time"),
    ("a certificate ends soon",
     healthy(members=with_first(certificate_expires_at=NOW + LEFT)), WARN, "tls: certificate"),
    ("a certificate has ended",
     healthy(members=with_first(certificate_expires_at=NOW - LEFT)), BAD, "tls: certificate"),
    ("one member alone", healthy(seen(member(1))), WARN, "members: takeover"),
    ("two versions of schedd",
     healthy(seen(member(1), member(2, version="0.9"))), WARN, "members: versions"),
    ("two of one name", healthy(duplicates=(DUPLICATE,)), WARN, "members: names"),
    ("two tzdata",
     healthy(seen(member(1), member(2, tzdata="2025b"))), WARN, "members: tzdata"),
    ("a member without workers",
     healthy(seen(member(1), member(2), member(3, attached=False))), WARN,
     "members: workers attached"),
    ("no worker", healthy(seen(workers=frozenset()), workers=()), BAD, "workers: attached"),
    ("no worker here", healthy(workers=()), WARN, "workers: attached"),
    ("an old worker",
     healthy(workers=(worker("w1", "0.9", disk_free=9000 * MIB),)), WARN,
     "workers: versions"),
    ("a spool's disk is full",
     healthy(workers=(worker("w1", "1.0", disk_free=MIB),)), BAD, "workers: spool"),
    ("a spool that takes nothing, on a disk without a free byte",
     healthy(workers=(worker("w1", "1.0", refusal_reason="spool rejects writes: full"),)), BAD,
     "workers: spool"),
    ("handlers that block all event loops",
     healthy(workers=(replace(W1, refusal_reason=ALL_BLOCKED),),
             blocked={W1.incarnation.id: (BLOCKED, BLOCKED)}), BAD, "workers: handlers"),
    ("handlers that block all event loops as another member reports",
     healthy(elsewhere=(replace(W1, refusal_reason=ALL_BLOCKED),)), BAD, "workers: handlers"),
    ("an unknown reason for no new runs",
     healthy(workers=(replace(W1, refusal_reason="lunch"),)), BAD, "workers: new runs"),
    ("a spool on a disk that isn't reported",
     healthy(workers=(worker("w1", "1.0"),)), WARN, "workers: spool"),
    ("a handler that blocks its event loop",
     healthy(workers=(W1,), blocked={W1.incarnation.id: (BLOCKED,)}), WARN, "workers: handlers"),
    ("a spool's disk is nearly full",
     healthy(workers=(worker("w1", "1.0", disk_free=500 * MIB),)), WARN,
     "workers: spool"),
    ("a spool's disk is full as another member reports",
     healthy(elsewhere=(worker("w2", "1.0", disk_free=MIB),)), BAD, "workers: spool"),
    ("an old worker, at another member",
     healthy(elsewhere=(worker("w2", "0.9", disk_free=9000 * MIB),)), WARN,
     "workers: versions"),
    ("a worker without heartbeats", healthy(heartbeats_missing=("w2",)), WARN,
     "workers: heartbeats"),
    ("results pile up",
     healthy(workers=(worker("w1", "1.0", spool=99 * MIB, disk_free=9000 * MIB),)), WARN,
     "workers: spool"),
]  # fmt: skip


def test_many_workers_without_received_heartbeats_are_one_finding() -> None:
    found = examine(healthy(heartbeats_missing=tuple(f"w{number:04}" for number in range(1000))))
    [finding] = [one for one in found if (one.area, one.check) == ("workers", "heartbeats")]
    assert "w0009 and 990 more" in finding.what


@pytest.mark.parametrize(
    ("facts", "severity", "check"),
    [trouble[1:] for trouble in TROUBLES],
    ids=[trouble[0] for trouble in TROUBLES],
)
def test_each_problem_is_found_with_its_reason_and_remedy(
    facts: Facts, severity: Severity, check: str
) -> None:
    found = wrong(facts)
    assert (check, severity) in {(f"{one.area}: {one.check}", one.severity) for one in found}
    assert all(one.why and one.remedy for one in found)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_an_encoding_that_lacks_letters_is_named_with_the_one_to_use(encoding: str) -> None:
    database = stored(settings={"server_encoding": encoding})
    [finding] = [one for one in wrong(healthy(database=database)) if one.check == "encoding"]
    assert finding.severity is Severity.BAD
    assert finding.what == f"the database's encoding is {encoding}, not UTF8"
    assert "ENCODING 'UTF8'" in finding.remedy


@pytest.mark.parametrize("by", ["another member", "the queried member"])
def test_a_dependency_that_rejects_writes_is_named_with_time_reason_and_remedy(
    by: str,
) -> None:
    cause = "PostgreSQL's disk is full: could not extend file"
    failed = (
        DependencyFailure(Dependency.POSTGRESQL, "", cause, "Make room on PostgreSQL's disk", NOW),
    )
    facts = (
        healthy(members=with_first(failures=failed))
        if by == "another member"
        else healthy(failures=failed, members=())
    )
    [finding] = [one for one in wrong(facts) if one.check == "postgresql"]
    assert finding.severity is Severity.BAD
    assert finding.subject == ("m1" if by == "another member" else by)
    assert finding.what == f"{cause}, since 2026-01-05T12:00:00Z"
    assert finding.why.startswith(
        "the member isn't ready: calls and tasks that need PostgreSQL fail"
    )
    assert finding.remedy == "Make room on PostgreSQL's disk"


def test_a_failure_that_a_member_explains_has_its_remedy_and_no_second_cause() -> None:
    failed = DependencyFailure(
        Dependency.POSTGRESQL, "", "PostgreSQL rejects the login", "Correct the DSN", NOW
    )
    facts = healthy(
        database=FailedRead("no answer"),
        members=with_first(
            member(1, database=False), seconds_since_database=27.0, failures=(failed,)
        ),
    )
    remedies = {(one.area, one.check): one.remedy for one in wrong(facts)}
    assert remedies["postgres", "answers"] == "Correct the DSN"
    assert ("members", "answers") not in remedies


AWAY_READ = FailedRead("no answer")


@pytest.mark.parametrize(
    "facts",
    [healthy(database=AWAY_READ, locks=(HELD,)), healthy(unread=AWAY_READ, locks=(HELD,))],
)
def test_a_lock_that_stops_the_other_reads_is_named_and_is_the_remedy(facts: Facts) -> None:
    found = {one.check: one for one in wrong(facts)}
    held = found.pop("locks")
    assert held.subject == "t"
    assert "pid 7 (user ann, application psql) holds ShareLock" in held.what
    assert "2026-01-05T12:00:00Z" in held.what
    assert "pg_terminate_backend(7)" in held.remedy
    [waits] = found.values()
    assert waits.remedy == "end the session that the check of locks names"


def test_the_grant_that_shows_the_age_of_a_transaction_is_named() -> None:
    hidden = tuple(DatabaseSession(pid, "ann") for pid in range(7))
    [found] = wrong(healthy(database=stored(hidden=hidden, user='"my role"')))
    assert "pid 0 (user ann), " in found.what
    assert "pid 4 (user ann) and 2 more" in found.what
    assert 'GRANT pg_read_all_stats TO "my role"' in found.remedy


LIMITED = FailedRead("PostgreSQL has no connection left", "no_connection", "Raise CONNECTION LIMIT")
REVOKED = FailedRead("PostgreSQL denies a privilege", "permission_denied", "GRANT SELECT")


def test_a_failed_read_is_reported_with_its_own_remedy() -> None:
    other = DependencyFailure(
        Dependency.POSTGRESQL, "", "PostgreSQL's disk is full", "Make room", NOW
    )
    facts = healthy(database=LIMITED, work=LIMITED, rows=(), members=with_first(failures=(other,)))
    remedies = {(one.area, one.check): one.remedy for one in wrong(facts)}
    assert remedies["postgres", "answers"] == "Raise CONNECTION LIMIT"
    assert remedies["work", "work"] == "Raise CONNECTION LIMIT"


@pytest.mark.parametrize(
    ("failed", "why"),
    [
        (
            LIMITED,
            "a member without PostgreSQL fires no jobs, dispatches no runs and accepts no results",
        ),
        (REVOKED, "calls and background tasks that need these tables fail"),
    ],
)
def test_a_failed_read_of_postgresql_says_only_what_is_certain(
    failed: FailedRead, why: str
) -> None:
    facts = healthy(database=failed, rows=())
    [finding] = [one for one in wrong(facts) if one.area == "postgres"]
    assert finding.why.startswith(why)


def test_a_denied_read_leaves_the_other_findings_and_has_its_own_remedy() -> None:
    lacks = "role a lacks b. Run in this database, as its owner or a superuser:\n    GRANT b TO a;"
    facts = healthy(database=stored(lacks=lacks), rows=(), unread=REVOKED, locks=LIMITED)
    found = {one.check: one for one in wrong(facts)}
    assert found["privileges"].remedy.endswith("GRANT b TO a;")
    assert found["tables"].what.endswith("PostgreSQL denies a privilege")
    assert "calls and background tasks that need these tables fail" in found["tables"].why
    assert found["tables"].remedy == "GRANT SELECT"
    assert found["locks"].remedy == "Raise CONNECTION LIMIT"


def test_an_untrusted_lease_without_postgresql_isnt_blamed_on_etcd() -> None:
    facts = healthy(database=LIMITED, rows=(), trusted=False)
    remedies = {one.check: one.remedy for one in wrong(facts)}
    assert remedies["view"].startswith("see the findings about PostgreSQL")
    alone = replace(facts, members=())
    remedies = {one.check: one.remedy for one in wrong(alone)}
    assert remedies["view"].endswith("check PostgreSQL")


LOST = LostMember("m2", TenureId(Id.from_int(2)), NOW)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "run three members"),
        ({"work": LIMITED}, "check /readyz"),
        ({"work": WorkFacts(losses=Losses(members=(LOST,)))}, "check /readyz"),
        ({"view": seen(member(1), member(2, draining=True))}, "check /readyz"),
    ],
)
def test_more_members_are_advised_only_if_no_other_member_is_known(
    changes: dict[str, Any], remedy: str
) -> None:
    found = wrong(healthy(**{"view": seen(member(1)), **changes}))
    [finding] = [one for one in found if one.check == "takeover"]
    assert finding.what == "1 member can own shards"
    assert finding.remedy.startswith(remedy)


def test_an_unavailable_database_stops_no_other_check() -> None:
    areas = {one.area for one in examine(healthy(database=FailedRead("refused"), rows=()))}
    assert areas >= {"etcd", "postgres", "cluster", "members", "workers"}


def test_facts_that_an_untrusted_member_cant_know_arent_reported_as_ok() -> None:
    away = EtcdFacts((AWAY,))
    checks = {(one.area, one.check) for one in examine(healthy(trusted=False, etcd=away))}
    known_by_etcd = {("cluster", each) for each in ("leader", "shards", "balance", "keys")}
    assert not checks & {*known_by_etcd, ("etcd", "revisions")}
    assert ("cluster", "pause") in checks, "the database tells it"
    unread = {(one.area, one.check) for one in examine(healthy(database=FailedRead("refused")))}
    assert ("cluster", "pause") not in unread


DENIED = EtcdFacts(
    (endpoint(1),), unread="etcd denies the read", unread_remedy="grant the read to the user"
)


def test_checks_of_keys_that_etcd_denies_to_read_arent_ok() -> None:
    failed = (DependencyFailure(Dependency.ETCD, "", "etcd denies the read", "grant it", NOW),)
    found = list(examine(healthy(etcd=DENIED, failures=failed)))
    [view] = [one for one in found if one.check == "view"]
    assert view.severity is Severity.BAD
    assert "unknown since 2026-01-05T12:00:00Z: etcd denies the read" in view.what
    assert view.remedy == "grant the read to the user"
    ok = {one.check for one in found if one.severity is Severity.OK}
    assert not ok & {"keys", "leader", "shards", "balance", "revisions", "takeover", "tzdata"}


def test_a_database_of_an_unknown_prefix_isnt_called_unshared() -> None:
    [finding] = wrong(healthy(foreign=None))
    assert (finding.check, finding.severity) == ("database", Severity.WARN)


@pytest.mark.parametrize(
    ("members", "remedy"),
    [
        (
            with_first(trusted=False),
            "m2 has a valid lease: query that member with --endpoints m2:7420",
        ),
        (
            tuple(MemberFacts(one, trusted=False) for one in seen().members),
            "no member that answers has a valid lease: check etcd",
        ),
        (
            (
                MemberFacts(member(1), trusted=False),
                MemberFacts(member(2), trusted=False),
                MemberFacts(member(3), away="timed out"),
            ),
            "has a valid lease: check etcd, then the members that don't answer",
        ),
        ((), "no member that answers has a valid lease: check etcd"),
    ],
)
def test_only_a_member_with_a_trusted_lease_is_worth_a_query(
    members: tuple[MemberFacts, ...], remedy: str
) -> None:
    found = wrong(healthy(members=members, trusted=False))
    [view] = [one for one in found if one.check == "view"]
    assert view.remedy.endswith(remedy)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_member_keeps_its_shards_without_etcd_only_while_its_lease_is_trusted(
    *, trusted: bool
) -> None:
    failed = (DependencyFailure(Dependency.ETCD, "", "etcd doesn't answer", "start etcd", NOW),)
    one = MemberFacts(member(1), trusted=trusted, failures=failed)
    for facts in (healthy(members=(one,)), healthy(members=(), failures=failed, trusted=trusted)):
        [finding] = [each for each in wrong(facts) if each.check == "etcd"]
        assert ("keeps its shards while its lease is valid" in finding.why) is trusted
        assert ("fires no jobs" in finding.why) is not trusted


def test_workers_of_an_outdated_view_arent_counted() -> None:
    found = [each for each in examine(healthy(trusted=False)) if each.check == "attached"]
    assert [each.what for each in found] == [
        "workers attached to the queried member: 1; workers with a lease in etcd: unknown"
    ]
    [none] = [
        each for each in examine(healthy(etcd=DENIED, workers=())) if each.check == "attached"
    ]
    assert none.severity is Severity.WARN


def test_a_second_daemon_of_a_name_is_reported_with_its_host() -> None:
    [one] = [
        finding for finding in wrong(healthy(duplicates=(DUPLICATE,))) if finding.check == "names"
    ]
    assert one.subject == "w1"
    assert one.what == "a second worker of this name (h2) was rejected at 2026-01-05T12:00:00Z"


def test_the_doctor_prints_the_missing_grants_of_the_role() -> None:
    lacks = "role a lacks b. Run in this database, as its owner or a superuser:\n    GRANT b TO a;"
    found = stored(timeline_given=False, ends_sessions=False, lacks=lacks)
    findings = {each.check: each for each in examine(healthy(database=found))}
    said = "run these statements as the owner of the tables: GRANT b TO a;"
    assert findings["privileges"].remedy == said
    assert "marks" in findings["timeline"].why
    assert "pg_terminate_backend" in findings["sessions"].what


@pytest.mark.parametrize(
    ("job", "what", "remedy"),
    [
        (StuckJob("train", 1, NOW, "shell jobs with gpu=yes"), "1 run waits", "start a worker"),
        (
            StuckJob("train", 3, NOW, "shell jobs with gpu=yes", could=("w3",)),
            "w3 could, but it is lost",
            "start worker w3 again",
        ),
        (
            StuckJob("train", 3, NOW, "shell jobs with gpu=yes", could=("w3", "w2")),
            "w3, w2 could, but all are lost",
            "start one of these workers again",
        ),
        (
            StuckJob("train", 3, NOW, "shell jobs with gpu=yes", ("w2",), draining=("w3",)),
            "w3 could, but it is draining",
            "`schedctl worker undrain w3`",
        ),
        (
            StuckJob("train", 3, NOW, "plugin/sqlite jobs", plugin="sqlite"),
            "3 runs or more wait",
            "install the plug-in 'sqlite' in the environment of a worker",
        ),
    ],
)
def test_a_job_without_a_matching_worker_has_the_fitting_remedy(
    job: StuckJob, what: str, remedy: str
) -> None:
    [finding] = [each for each in wrong(healthy(work=WorkFacts(stuck=(job,)))) if each.subject]
    assert (finding.area, finding.subject) == ("work", "train")
    assert what in finding.what
    assert remedy in finding.remedy


MINUTES = timedelta(minutes=1)
HANG = SlotHolder("w2", "default", "hang", 16, NOW - 3 * MINUTES)
FULL = FullWorkers((("default", "z1"),), NOW - 2 * MINUTES, ("w2",), 16, 16, (HANG,))


def test_full_workers_are_named_with_the_runs_that_keep_their_slots() -> None:
    job = JobId(Id.from_int(1))
    z1 = GrowingQueue(job, 108, 320, 212, "z1")
    growing = (z1, GrowingQueue(job, 200, 300, 100, "other"))
    work = WorkFacts(oldest=NOW - 2 * MINUTES, full=(FULL,), growing=growing)
    oldest, own, other = wrong(healthy(work=work))
    assert (oldest.check, oldest.severity) == ("oldest ready run", Severity.WARN)
    assert oldest.what == (
        "a run has waited for 2 min, since 2026-01-05T11:58:00Z (jobs: z1): 16 of 16 slots of w2"
        " are in use; the slots are held by older runs: 16 runs of hang since 2026-01-05T11:57:00Z"
    )
    for command in (
        "`schedctl run list --state RUNNING --worker w2`",
        "`schedctl run cancel RUN`",
        "lower the `timeout` of hang",
        "add slots",
    ):
        assert command in oldest.remedy
    assert "correct the finding about the oldest ready run" in own.remedy
    assert "run the job less often" in other.remedy


def test_workers_that_are_full_of_short_runs_need_more_slots() -> None:
    short = replace(FULL, holders=(replace(HANG, since=NOW),))
    [finding] = wrong(healthy(work=WorkFacts(full=(short,))))
    assert "hang" not in finding.what
    assert finding.remedy.startswith("add slots or workers")
    paused = wrong(healthy(work=WorkFacts(full=(FULL,)), pause=Pause(NOW, "ops")))
    assert [one.check for one in paused] == ["pause"]


def test_jobs_without_any_worker_are_one_finding() -> None:
    work = WorkFacts(stuck=tuple(StuckJob(f"j{n}", 1, NOW, "shell jobs") for n in range(12)))
    found = [*wrong(healthy(seen(workers=frozenset()), workers=(), work=work))]
    [finding] = [one for one in found if one.check == "jobs without a worker"]
    assert finding.what.startswith("12 jobs have waiting runs")
    assert "never" not in finding.why


def losses_of(facts: Facts) -> list[CheckupFinding]:
    return [one for one in examine(facts) if one.check == "lost members"]


def test_losses_that_ended_are_counted() -> None:
    [none] = losses_of(healthy())
    assert none.what == "no member is lost now"
    [ended] = losses_of(healthy(work=WorkFacts(returned_members=2)))
    said = "no member is lost now; 2 members were lost in the last 24 h and returned"
    assert ended.what == said


def test_a_restarted_member_is_counted_once() -> None:
    old = member(1, tenure=TenureId(Id.from_int(11)))
    view = seen(member(1), old, member(2), member(3))
    lost = WorkFacts(losses=Losses(members=(LOST,)))
    [finding] = losses_of(healthy(view, work=lost))
    assert finding.what.endswith("; 2 of 3 members are live")


def test_a_loss_isnt_certain_without_etcd() -> None:
    work = WorkFacts(losses=Losses(members=(LOST,), workers=(incarnation(worker="w1"),)))
    facts = healthy(trusted=False, work=work)
    found = [one for one in examine(facts) if one.check in {"lost members", "lost workers"}]
    assert [one.severity for one in found] == [Severity.WARN] * 2
    for one in found:
        assert "takes over" not in one.why
        assert "start it" not in one.remedy
    assert losses_of(healthy(trusted=False)) == []


def test_the_room_for_a_spool_is_reported_with_the_limit() -> None:
    worker = replace(W1, disk_free=531 * MIB)
    [finding] = wrong(healthy(workers=(worker,)))
    assert finding.what == (
        "the spool holds 0.0 MiB; its disk has 531.0 MiB free, less than 1,024 MiB"
    )
    assert "nearly full" not in finding.why


def test_a_handler_that_blocks_many_loops_of_a_worker_is_one_finding() -> None:
    blocks = tuple(replace(BLOCKED, run=f"r{n}", seconds=40.0 + n) for n in range(1, 9))
    w2 = replace(W1, incarnation=incarnation(worker="w2", version="1.0"))
    facts = healthy(workers=(W1,), blocked={W1.incarnation.id: blocks}, elsewhere=(w2,))
    [finding] = wrong(facts)
    assert finding.severity is Severity.WARN
    assert finding.what == (
        "handler 'export' has blocked 8 event loops, the longest for 48 s, at night.py:11 in export"
        "; its runs: r1, r2, r3, r4, r5, r6, r7, r8"
    )
    assert "run list --state RUNNING --worker w1`" in finding.remedy
    assert "run list --state PENDING --job JOB`" in finding.remedy
    steps = ("job pause JOB", "run cancel RUN", "worker drain w1", "restart", "worker undrain w1")
    assert sorted(steps, key=finding.remedy.index) == list(steps)


def test_a_worker_whose_loops_are_all_blocked_has_no_finding_about_its_disk() -> None:
    facts = healthy(
        workers=(replace(W1, refusal_reason=ALL_BLOCKED),), blocked={W1.incarnation.id: (BLOCKED,)}
    )
    [finding] = wrong(facts)
    assert "handler 'export' of run r1 has blocked an event loop for 41 s" in finding.what
    assert "takes no new runs" in finding.why
    assert not {"spool", "disk"} & set(finding.remedy.split())


@pytest.mark.parametrize(
    ("live", "text"),
    [(0, "0 workers are live"), (1, "1 worker is live"), (2, "2 workers are live")],
)
def test_a_lost_worker_is_reported_with_the_number_of_live_ones(live: int, text: str) -> None:
    lost = replace(incarnation(worker="w1"), lost_at=NOW)
    workers = frozenset(IncarnationId(Id.from_int(n)) for n in range(live))
    work = WorkFacts(losses=Losses(workers=(lost,)))
    found = examine(healthy(seen(workers=workers), work=work))
    [finding] = [one for one in found if one.check == "lost workers"]
    assert finding.what.endswith(text)
    assert "were started" not in finding.why
