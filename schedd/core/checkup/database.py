"""Check PostgreSQL: version, schema, privileges, durability, connections, replication, sizes."""

from collections.abc import Iterator, Sequence
from typing import Final

from schedd.core.checkup.facts import DatabaseFacts, Facts, FailedRead
from schedd.core.checkup.finding import CheckSubject, CheckupFinding
from schedd.core.cluster.dependency import Dependency

AREA: Final = "postgres"
MIB: Final = 1024 * 1024
TIMEOUTS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
DURABLE: Final = ("fsync", "full_page_writes", "synchronous_commit")
ENCODING: Final = "UTF8"
"""The only encoding that can store every text of a job."""
OLDEST: Final = 140000
WRAPAROUND: Final = 1_000_000_000
HIDDEN: Final = "schedd's role may not see when this session's transaction began"
PARTIAL_REASONS: Final = {"permission_denied", "schema_mismatch"}
"""Reasons of rejections that may concern one table only."""
WAITING: Final = "statements of members may wait, too"
PARTIAL: Final = "calls and background tasks that need these tables fail, and are retried"


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    found = facts.database
    answers = CheckSubject(AREA, "answers")
    if isinstance(found, FailedRead):
        yield answers.bad(
            found.cause,
            PARTIAL
            if found.reason in PARTIAL_REASONS
            else "a member without PostgreSQL fires no jobs, dispatches no runs and accepts no"
            " results; workers keep their results",
            _lock_remedy(facts)
            or found.remedy
            or next(_reported_remedies(facts), "")
            or "check that PostgreSQL runs and answers: its processes, its log, and the network to"
            " it",
        )
        yield from _held(facts)
        return
    yield answers.ok(f"version {found.version // 10000}, in {found.took * 1000:.0f} ms")
    yield from _locks(facts)
    yield from _versions(found)
    yield _search_path(found)
    yield _role(found, facts)
    yield from _permissions(found)
    yield from _settings(found)
    yield from _replicas(found)
    yield _oldest(found)
    yield _wal(found)
    yield from _tables(found)


def _reported_remedies(facts: Facts) -> Iterator[str]:
    """Yield the remedies of failures that members report: they know why."""
    failures = (*facts.failures, *(one for member in facts.members for one in member.failures))
    return (one.remedy for one in failures if one.dependency == Dependency.POSTGRESQL)


def _locks(facts: Facts) -> Iterator[CheckupFinding]:
    check = CheckSubject(AREA, "locks")
    if isinstance(facts.locks, FailedRead):
        yield check.warn(
            facts.locks.cause,
            "the doctor can't name a session that locks schedd's tables",
            facts.locks.remedy
            or "run the doctor again; as a superuser, read pg_locks and pg_stat_activity",
        )
    elif not facts.locks:
        yield check.ok("no long transaction of another session blocks schedd's tables")
    yield from _held(facts)
    if facts.unread is not None:
        denied = facts.unread.reason in PARTIAL_REASONS
        yield CheckSubject(AREA, "tables").bad(
            f"schedd's tables couldn't be read: {facts.unread.cause}",
            f"shards, pauses and names aren't checked; {PARTIAL if denied else WAITING}",
            _lock_remedy(facts)
            or facts.unread.remedy
            or "find the cause in pg_stat_activity (wait_event, query): what do statements of"
            " schedd wait for?",
        )


def _lock_remedy(facts: Facts) -> str:
    """Return the remedy of reads that wait for a known session; empty if none is known."""
    known = facts.locks and not isinstance(facts.locks, FailedRead)
    return "end the session that the check of locks names" if known else ""


def _held(facts: Facts) -> Iterator[CheckupFinding]:
    if isinstance(facts.locks, FailedRead):
        return
    for one in facts.locks:
        began = f"its transaction began at {one.since:%Y-%m-%dT%H:%M:%SZ}" if one.since else HIDDEN
        hidden = "" if one.since else "; GRANT pg_read_all_stats TO schedd's role shows the time"
        modes = ", ".join(one.modes)
        lock = f"holds {modes}"
        if not one.modes:
            lock = "holds locks on rows for which another session waits"
        elif not one.granted:
            lock = f"waits for {modes}, and other statements wait behind this session"
        yield CheckSubject(AREA, "locks", _listed(one.tables)).bad(
            f"{one.session} {lock}; {began}",
            "statements of schedd wait for this session, and fail after lock_timeout",
            "wait if the session is maintenance that ends soon; else end the session as its role or"
            f" a superuser: SELECT pg_terminate_backend({one.session.pid}){hidden}",
        )


def _listed(found: Sequence[object]) -> str:
    """Return at most five of these as text."""
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(map(str, found[:5])) + more


def _versions(found: DatabaseFacts) -> Iterator[CheckupFinding]:
    version = f"{found.version // 10000}.{found.version % 10000}"
    yield CheckSubject(AREA, "version", healthy=version).bad_if(
        found.version < OLDEST, version, "schedd needs PostgreSQL 14 or newer", "upgrade PostgreSQL"
    )
    revisions = f"revision {found.schema}, this member expects {found.wanted_schema}"
    schema = CheckSubject(AREA, "schema", healthy=f"revision {found.schema}")
    if found.schema_admits and found.schema != found.wanted_schema:
        yield schema.warn(
            f"{revisions}; this member can use the schema",
            "this member works, but lacks the features of the newer version",
            "upgrade the members of the older version (docs/operations/upgrade.md)",
        )
    else:
        yield schema.bad_if(
            found.schema != found.wanted_schema,
            revisions,
            "a member of this version can't start again with this schema",
            "run `schedd migrate`, or upgrade the members of the older version",
        )
    encoding = found.settings.get("server_encoding", ENCODING)
    yield CheckSubject(AREA, "encoding", healthy=encoding).bad_if(
        encoding != ENCODING,
        f"the database's encoding is {encoding}, not {ENCODING}",
        "PostgreSQL rejects text that it can't encode: calls with such text fail, and output of"
        " runs is truncated",
        "move the data to a new database with a dump: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE"
        " template0",
    )


def _search_path(found: DatabaseFacts) -> CheckupFinding:
    check = CheckSubject(AREA, "search path")
    path = found.settings.get("search_path", "")
    if len(found.schemas) > 1:
        return check.bad(
            f"search path {path}: schedd's tables are in {len(found.schemas)} schemas:"
            f" {', '.join(found.schemas)}",
            "members read some tables from another copy: jobs and runs seem lost",
            "set one schema for the role (ALTER ROLE … IN DATABASE … SET search_path), then end the"
            " role's sessions",
        )
    if len(found.copies) > 1:
        return check.warn(
            f"search path {path}: schedd's tables exist twice, in {', '.join(found.copies)}",
            "a role with another search path, or a pooler's session, uses the other copy",
            "drop the unused copy, or set one schema for every role (ALTER ROLE … SET search_path)",
        )
    return check.ok(f"search path {path}: all tables are in schema {', '.join(found.schemas)}")


def _role(found: DatabaseFacts, facts: Facts) -> CheckupFinding:
    check = CheckSubject(AREA, "timeline")
    if found.in_recovery:
        return check.bad(
            "this member is connected to a standby",
            "a standby accepts no writes",
            "point the DSN at the primary (target_session_attrs=read-write)",
        )
    if facts.view.timeline and facts.view.timeline != found.timeline:
        return check.warn(
            f"this server is on timeline {found.timeline}, the leader's shard map names timeline"
            f" {facts.view.timeline}",
            "after a failover of PostgreSQL each member takes over its shards again; this hasn't"
            " completed",
            "see `schedctl cluster shards`, and check that all members reach the same server",
        )
    if not found.timeline_given:
        return check.warn(
            "this server doesn't report its timeline (pg_current_wal_lsn, pg_walfile_name)",
            "a failover is detected only by marks, which the leader writes every 5 s, and by lost"
            " connections: a replaced primary that still accepts writes isn't recognized",
            "nothing on Aurora, which has no timelines; elsewhere GRANT EXECUTE on both functions"
            " (docs/databases.md)",
        )
    return check.ok(f"timeline {found.timeline}, of the primary")


def _permissions(found: DatabaseFacts) -> Iterator[CheckupFinding]:
    why, _, statements = found.lacks.partition("\n")
    complete = "the role can use all tables and create their partitions"
    yield CheckSubject(AREA, "privileges", healthy=complete).bad_if(
        found.lacks,
        why.partition(". Run ")[0],
        PARTIAL,
        "run these statements as the owner of the tables: " + " ".join(statements.split()),
    )
    yield CheckSubject(AREA, "sessions", healthy="the role can end its own sessions").warn_if(
        not found.ends_sessions,
        "the role can't call pg_terminate_backend or pg_blocking_pids",
        "a member that stops inside a transaction holds its shards until its session times out",
        "GRANT EXECUTE on both functions to the role (docs/databases.md)",
    )


def _settings(found: DatabaseFacts) -> Iterator[CheckupFinding]:
    unset = [name for name in TIMEOUTS if found.settings.get(name, "0") in {"0", ""}]
    timeouts = ", ".join(f"{name} {found.settings.get(name)}" for name in TIMEOUTS)
    yield CheckSubject(AREA, "timeouts", healthy=timeouts).warn_if(
        unset,
        f"the role has no {', '.join(unset)}",
        "a stalled session can block a shard forever",
        "set each timeout for the role: ALTER ROLE … SET statement_timeout = '3s', and so on"
        " (docs/operations/schema.md)",
    )
    off = [name for name in DURABLE if found.settings.get(name) == "off"]
    yield CheckSubject(AREA, "durability", healthy=", ".join(DURABLE) + " are on").bad_if(
        off,
        f"parameters that are off: {', '.join(off)}",
        "a crash of PostgreSQL loses acknowledged transactions: runs may be lost or run twice",
        "set these parameters to on",
    )
    most = int(found.settings.get("max_connections", "100"))
    used = f"{found.connections} of {most} connections are in use"
    yield CheckSubject(AREA, "connections", healthy=used).warn_if(
        found.connections > 0.8 * most,
        used,
        "a member that can't connect gives up its shards",
        "raise max_connections, or put PgBouncer (transaction mode) in front of PostgreSQL",
    )


def _replicas(found: DatabaseFacts) -> Iterator[CheckupFinding]:
    check = CheckSubject(AREA, "replication")
    if not found.replicas:
        yield check.ok("no standby is attached")
    elif not all(one.state for one in found.replicas):
        yield check.warn(
            f"{len(found.replicas)} standbys; role {found.user} may not see their state",
            "it is unknown whether a failover loses transactions",
            f"as a superuser: GRANT pg_read_all_stats TO {found.user}",
        )
    elif all(one.sync == "async" for one in found.replicas):
        yield check.warn(
            f"{len(found.replicas)} asynchronous standbys",
            "a failover loses the newest transactions, which contain acknowledged calls and"
            " results",
            "set synchronous_standby_names if you can't lose them",
        )
    else:
        yield check.ok(f"{len(found.replicas)} standbys, at least one is synchronous")
    for one in found.replicas:
        if one.state and (one.lag > 64 * MIB or one.state != "streaming"):
            yield CheckSubject(AREA, "replication", one.name).warn(
                f"{one.state}, {one.lag / MIB:.0f} MiB behind",
                "a failover to this standby would lose recent transactions",
                "check the disk and network of the standby",
            )
    if found.idle_slots:
        yield CheckSubject(AREA, "replication slots").warn(
            f"replication slots without a reader: {', '.join(found.idle_slots)}",
            "PostgreSQL keeps WAL and old rows for each slot, until the disk is full",
            "if the reader won't return: SELECT pg_drop_replication_slot(…)",
        )


def _oldest(found: DatabaseFacts) -> CheckupFinding:
    check = CheckSubject(AREA, "oldest transaction")
    age = f"open for {found.oldest_transaction:.0f} s, {found.held_back} transactions since then"
    if found.oldest_transaction <= 300 and found.hidden:
        return check.warn(
            f"{age}; other roles have open transactions, whose age role {found.user} may not see:"
            f" {_listed(found.hidden)}",
            "a forgotten transaction prevents vacuum from removing dead rows, and may hold locks",
            f"let schedd see the age, as a superuser: GRANT pg_read_all_stats TO {found.user}",
        )
    if found.oldest_transaction > 300 or found.held_back > 1_000_000:
        return check.warn(
            age,
            "vacuum can't remove dead rows: busy tables grow and become slow",
            "find the transaction in pg_stat_activity, pg_prepared_xacts or pg_replication_slots,"
            " and end it",
        )
    return check.ok(age)


def _wal(found: DatabaseFacts) -> CheckupFinding:
    if found.wal is None:
        return CheckSubject(AREA, "WAL").warn(
            "the size of the WAL is unknown: schedd's role can't read it",
            "the doctor can't report a WAL that fills the disk",
            "GRANT pg_monitor to the role (docs/databases.md)",
        )
    size = f"{found.wal / MIB:.0f} MiB"
    return CheckSubject(AREA, "WAL", healthy=size).warn_if(
        found.wal > 16 * 1024 * MIB,
        size,
        "the WAL may fill the disk",
        "check replication slots and archive_command, which keep WAL",
    )


def _tables(found: DatabaseFacts) -> Iterator[CheckupFinding]:
    full = [one for one in found.tables if one.dead > max(10_000, one.live)]
    few = f"few dead rows in {len(found.tables)} tables"
    yield CheckSubject(AREA, "dead rows", healthy=few).warn_if(
        full,
        ", ".join(f"{one.name}: {one.dead} dead, {one.live} live" for one in full),
        "autovacuum doesn't keep up: statements become slow",
        "run VACUUM (VERBOSE) on these tables, and check the oldest transaction",
    )
    age = f"{found.age:,} transactions since the oldest row was frozen"
    yield CheckSubject(AREA, "transaction ids", healthy=age).bad_if(
        found.age > WRAPAROUND,
        age,
        "at 2,000,000,000 transactions PostgreSQL stops accepting writes",
        "run VACUUM FREEZE in the database",
    )
    exist = "the partitions of today and tomorrow exist"
    yield CheckSubject(AREA, "partitions", healthy=exist).warn_if(
        found.missing_days,
        "the table of runs has no partition for today or tomorrow",
        "runs of that day are stored in the default partition, and stay there",
        "run `schedd migrate`, which creates partitions; the leader's log shows why it didn't"
        " (housekeeping)",
    )
