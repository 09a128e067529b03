"""PostgreSQL: may it lose what it acknowledged, may a sleeper hold others up, is there room."""

from collections.abc import Iterator
from typing import Final

from schedd.core.checkup.facts import DatabaseFacts, Facts
from schedd.core.checkup.finding import CheckSubject, Finding

AREA: Final = "postgres"
MIB: Final = 1024 * 1024
TIMEOUTS: Final = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
DURABLE: Final = ("fsync", "full_page_writes", "synchronous_commit")
ENCODING: Final = "UTF8"
"""The only one that can store every text of a job."""
OLDEST: Final = 140000
WRAPAROUND: Final = 1_000_000_000


def examine(facts: Facts) -> Iterator[Finding]:
    """All of it, or that it doesn't answer."""
    found = facts.database
    answers = CheckSubject(AREA, "answers")
    if isinstance(found, str):
        yield answers.bad(
            found,
            "without it nothing is fired, assigned or accepted; workers keep their results",
            "start it, and see its log; members find it again by themselves",
        )
        return
    yield answers.ok(f"version {found.version // 10000}, in {found.took * 1000:.0f} ms")
    yield _version(found)
    yield _schema(found)
    yield _encoding(found)
    yield _search_path(found)
    yield _role(found, facts)
    yield _privileges(found)
    yield _sessions(found)
    yield _timeouts(found)
    yield _durable(found)
    yield _connections(found)
    yield from _replicas(found)
    yield _oldest(found)
    yield _wal(found)
    yield _bloat(found)
    yield _age(found)
    yield _days(found)


def _version(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "version")
    told = f"{found.version // 10000}.{found.version % 10000}"
    if found.version < OLDEST:
        return check.bad(told, "statements here need 14 or newer", "upgrade PostgreSQL")
    return check.ok(told)


def _schema(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "schema")
    if found.schema == found.wanted_schema:
        return check.ok(f"revision {found.schema}")
    told = f"revision {found.schema}, this member wants {found.wanted_schema}"
    if found.schema_admits:
        return check.warn(
            f"{told}, and is admitted",
            "it works, without what the newer version knows",
            "upgrade the members that are behind (docs/operations/upgrade.md)",
        )
    return check.bad(
        told,
        "a member that restarts on it won't start",
        "`schedd migrate`, or upgrade the members that are behind",
    )


def _encoding(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "encoding")
    encoding = found.settings.get("server_encoding", ENCODING)
    if encoding == ENCODING:
        return check.ok(encoding)
    return check.bad(
        f"the database's encoding is {encoding}, not {ENCODING}",
        "it rejects text that it can't encode: calls with such text fail, and output is cut",
        "restore a dump of it into a new one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
    )


def _search_path(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "search path")
    path = found.settings.get("search_path", "")
    if len(found.schemas) > 1:
        return check.bad(
            f"{path}: tables of schedd are found in {', '.join(found.schemas)}",
            "members read some tables of another copy: jobs and runs seem lost",
            "ALTER ROLE … IN DATABASE … SET search_path to the one schema, and end its sessions",
        )
    if len(found.copies) > 1:
        return check.warn(
            f"{path}: schedd's tables exist in {', '.join(found.copies)}",
            "a role with another search path, or a pooler's session, uses the other copy",
            "drop the copy that isn't used, or ALTER ROLE … SET search_path for every role",
        )
    return check.ok(f"{path}: all tables in schema {', '.join(found.schemas)}")


def _role(found: DatabaseFacts, facts: Facts) -> Finding:
    check = CheckSubject(AREA, "timeline")
    if found.in_recovery:
        return check.bad(
            "this member is connected to a standby",
            "it can write nothing",
            "point its DSN at the primary (target_session_attrs=read-write)",
        )
    if facts.view.timeline and facts.view.timeline != found.timeline:
        return check.warn(
            f"{found.timeline} here, {facts.view.timeline} in the map",
            "after a fail-over every owner takes its shards anew; it should have by now",
            "see `schedctl cluster shards`, and whether all members reach the same server",
        )
    if not found.timeline_given:
        return check.warn(
            "this server doesn't give its timeline (pg_current_wal_lsn, pg_walfile_name)",
            "a failover is noticed by marks (every 5 s) and lost connections only: a replaced"
            " primary that still takes writes isn't recognized",
            "expected on Aurora; elsewhere GRANT EXECUTE on both functions (docs/databases.md)",
        )
    return check.ok(f"{found.timeline}, the primary's")


def _privileges(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "privileges")
    if not found.lacks:
        return check.ok("the role can use all tables, and make partitions of them")
    why, _, statements = found.lacks.partition("\n")
    return check.bad(
        why.partition(". Run ")[0],
        "members can't read or write, or the leader can't make and drop daily partitions",
        "run as the owner of the tables: " + " ".join(statements.split()),
    )


def _sessions(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "sessions")
    if found.ends_sessions:
        return check.ok("the role can end its own sessions")
    return check.warn(
        "the role can't call pg_terminate_backend or pg_blocking_pids",
        "a member that stops inside a transaction holds its shards until its session times out",
        "GRANT EXECUTE on both functions to the role (docs/databases.md)",
    )


def _timeouts(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "timeouts")
    unset = [name for name in TIMEOUTS if found.settings.get(name, "0") in {"0", ""}]
    if not unset:
        return check.ok(", ".join(f"{name} {found.settings[name]}" for name in TIMEOUTS))
    return check.warn(
        f"unset: {', '.join(unset)}",
        "a session that stalls can hold a shard up for ever",
        "ALTER ROLE … SET statement_timeout = '3s', and so on (docs/operations/schema.md)",
    )


def _durable(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "durability")
    off = [name for name in DURABLE if found.settings.get(name) == "off"]
    if off:
        return check.bad(
            f"off: {', '.join(off)}",
            "a crash loses what was acknowledged: runs may be lost or run twice",
            "set them on",
        )
    return check.ok(", ".join(DURABLE) + " are on")


def _connections(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "connections")
    most = int(found.settings.get("max_connections", "100"))
    told = f"{found.connections} of {most}"
    if found.connections > 0.8 * most:
        return check.warn(
            told,
            "a member that can't connect gives its shards up",
            "raise max_connections, or put PgBouncer (transaction mode) before it",
        )
    return check.ok(told)


def _replicas(found: DatabaseFacts) -> Iterator[Finding]:
    check = CheckSubject(AREA, "replication")
    if not found.replicas:
        yield check.ok("no standby is attached")
    elif all(one.sync == "async" for one in found.replicas):
        yield check.warn(
            f"{len(found.replicas)} asynchronous standbys",
            "a fail-over loses the newest transactions: calls and results that were acknowledged",
            "set synchronous_standby_names, if that matters",
        )
    else:
        yield check.ok(f"{len(found.replicas)} standbys, synchronous")
    for one in found.replicas:
        if one.lag > 64 * MIB or one.state != "streaming":
            yield CheckSubject(AREA, "replication", one.name).warn(
                f"{one.state}, {one.lag / MIB:.0f} MiB behind",
                "it is of little use in a fail-over",
                "see to its disk and network",
            )
    if found.idle_slots:
        yield CheckSubject(AREA, "replication slots").warn(
            f"nobody reads {', '.join(found.idle_slots)}",
            "each keeps WAL, and old rows, for ever: the disk fills",
            "SELECT pg_drop_replication_slot(…), if its reader won't come back",
        )


def _oldest(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "oldest transaction")
    told = f"{found.oldest_transaction:.0f} s, {found.held_back} transactions back"
    if found.oldest_transaction > 300 or found.held_back > 1_000_000:
        return check.warn(
            told,
            "vacuum can't clean up behind it: hot tables grow, and slow down",
            "find it in pg_stat_activity, pg_prepared_xacts or pg_replication_slots, and end it",
        )
    return check.ok(told)


def _wal(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "WAL")
    if found.wal is None:
        return check.ok("the daemons' role may not see it (pg_monitor may)")
    told = f"{found.wal / MIB:.0f} MiB"
    if found.wal > 16 * 1024 * MIB:
        return check.warn(told, "the disk may fill", "see replication slots and archive_command")
    return check.ok(told)


def _bloat(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "dead rows")
    full = [one for one in found.tables if one.dead > max(10_000, one.live)]
    if full:
        told = ", ".join(f"{one.name}: {one.dead} beside {one.live}" for one in full)
        return check.warn(
            told,
            "autovacuum doesn't keep up: statements slow down",
            "VACUUM (VERBOSE) them, and see the oldest transaction",
        )
    return check.ok(f"few, in {len(found.tables)} tables")


def _age(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "transaction ids")
    if found.age > WRAPAROUND:
        return check.bad(
            f"{found.age:,} since the oldest row was frozen",
            "at 2,000,000,000 PostgreSQL stops taking writes",
            "VACUUM FREEZE",
        )
    return check.ok(f"{found.age:,} since the oldest row was frozen")


def _days(found: DatabaseFacts) -> Finding:
    check = CheckSubject(AREA, "partitions")
    if found.missing_days:
        return check.warn(
            "today or tomorrow has no partition of its own",
            "its runs land in the default one, and stay there",
            "see the leader's log for housekeeping; `schedd migrate` makes them too",
        )
    return check.ok("today's and tomorrow's are there")
