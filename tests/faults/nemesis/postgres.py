"""Faults of PostgreSQL: restarted, crashed, replaced, locked, out of connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager

import psycopg2

from faults.nemesis import disks
from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world.postgres import PORT, Server
from faults.world.world import World
from schedctl.dev.servers import postgres
from support.wait import wait_until

ANSWERS_WITHIN = 30.0
LIMIT = 300
"""More connections than the server has."""
HOARDER = "hoarder"
"""Role of the sessions that take the connections of others."""
A_MOMENT = 1.0
"""Seconds for which a daemon may have had a connection until that was seen, on a busy machine."""
REFUSALS = 5
"""Attempts to connect that are refused in a row when all connections are taken."""
END_THEIRS = (
    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{postgres.ROLE}'"
)


@contextmanager
def restarted(journal: Journal, server: Server, *, crash: bool = False) -> Iterator[Fault]:
    """Ended in fast mode (sessions are ended, all is written), or crashed; begun again after."""
    name = "PostgreSQL crashed" if crash else "PostgreSQL restarted"
    with journal.fault(name, server.host.name) as fault:
        service = server.service
        if crash:
            service.kill()
        else:
            server.stop()
        if server.answers():
            raise NoEffect("PostgreSQL still answers")
        fault.took_effect(what="connections are refused")
        try:
            yield fault
        finally:
            fault.end()
            service.start()
            wait_until(server.answers, ANSWERS_WITHIN, "PostgreSQL to answer")


@contextmanager
def failed_over(journal: Journal, world: World) -> Iterator[Fault]:
    """The primary is killed, with all that belongs to it; its standby is promoted at the end."""
    primary = world.postgres
    with journal.fault("PostgreSQL failed over", primary.host.name) as fault:
        primary.kill()
        if primary.answers():
            raise NoEffect("PostgreSQL still answers")
        fault.took_effect(what="connections are refused")
        try:
            yield fault
        finally:
            fault.end()
            world.fail_over()


@contextmanager
def replaced_alive(journal: Journal, primary: Server) -> Iterator[Fault]:
    """A primary in whose place a standby was promoted is still there: it takes writes and waits for
    no standby. It is ended at the end, and stays so.
    """
    with journal.fault("replaced primary still there", primary.host.name) as fault:
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
        primary.sql("SELECT pg_reload_conf()")
        written = "SELECT pg_current_xact_id()::text"  # a number is drawn, so it is a commit
        fault.effect_of(lambda: primary.sql(written), 10, "the replaced primary to take a write")
        try:
            yield fault
            if not primary.sql(written):
                raise NoEffect("the replaced primary took no write at the end")
        finally:
            fault.end()
            primary.kill()


def asked_of_late(server: Server, seconds: float) -> list[str]:
    """The hosts of the members whose sessions on this server did something in the last seconds; a
    session whose line was cut stays on for hours.
    """
    found = server.sql(
        "SELECT host(client_addr) FROM pg_stat_activity WHERE application_name LIKE 'schedd%%'"
        " AND state_change > clock_timestamp() - make_interval(secs => %s)",
        seconds,
    )
    return [str(host) for (host,) in found]


@contextmanager
def locked(
    journal: Journal, server: Server, table: str, mode: str = "EXCLUSIVE"
) -> Iterator[Fault]:
    """Block all writes to this table; taken in a queue, as a migration would, and seen to block."""
    with (
        journal.fault("table locked", table, mode=mode) as fault,
        closing(psycopg2.connect(server.back_door)) as session,
        session.cursor() as cursor,
    ):
        cursor.execute(f"LOCK TABLE {table} IN {mode} MODE")
        fault.effect_of(lambda: waiting(server), 10, f"someone to wait for {table}")
        try:
            yield fault
            cursor.execute("SELECT 1")  # the lock is held as long as its session lives
        finally:
            fault.end()
            session.rollback()


def waiting(server: Server) -> int:
    """How many sessions wait for a lock now."""
    [(count,)] = server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return int(count)


@contextmanager
def exhausted(journal: Journal, server: Server) -> Iterator[Fault]:
    """Every connection that is not the superuser's is taken, and no daemon has one left; one that
    comes free later, and may go to a daemon, is taken as soon as that is seen.
    """
    with (
        journal.fault("connections exhausted", server.host.name) as fault,
        postgres.connect(server.back_door),  # one for all: the few reserved go too
        ExitStack() as held,
        ThreadPoolExecutor(1, "hoarder") as beside,
    ):
        server.sql(f"CREATE ROLE {HOARDER} LOGIN")
        held.callback(server.sql, f"DROP ROLE {HOARDER}")
        refusal = _take_all(server, held)
        fault.took_effect(what=refusal)
        ended = threading.Event()
        watching = beside.submit(_watch, server, held, ended)
        try:
            yield fault
        finally:
            ended.set()
            wait([watching])
            fault.end()
        if (longest := watching.result()) > A_MOMENT:
            raise NoEffect(f"a daemon had a connection for {longest:.1f} s")


def _watch(server: Server, held: ExitStack, ended: threading.Event) -> float:
    """See to it that no daemon keeps a connection; the seconds that one may have had it."""
    longest, clean = 0.0, time.monotonic()
    while not ended.wait(0.1):
        began = time.monotonic()
        if server.sql(END_THEIRS):
            longest = max(longest, time.monotonic() - clean)
            _take_all(server, held)
            began = time.monotonic()
        clean = began
    return longest


def _take_all(server: Server, held: ExitStack) -> str:
    """End the daemons' sessions and connect until refused; answers in which words. Meanwhile they
    may have none, for they would race for each.
    """
    server.sql(f"ALTER ROLE {postgres.ROLE} CONNECTION LIMIT 0")
    try:
        wait_until(lambda: _none_left(server), 10, "no daemon to have a connection")
        return _connect_until_refused(server, held)
    finally:
        server.sql(f"ALTER ROLE {postgres.ROLE} CONNECTION LIMIT -1")


def _none_left(server: Server) -> bool:
    """No session of theirs for a moment: one that has just begun to connect isn't shown yet."""
    for _ in range(5):
        if server.sql(END_THEIRS):
            return False
        time.sleep(0.05)
    return True


def _connect_until_refused(server: Server, held: ExitStack) -> str:
    """Connect until each of several attempts in a row is refused: a daemon's own attempt has a
    connection until it is refused, and leaves it to the next.
    """
    hoarder = postgres.dsn(PORT, role=HOARDER, host=server.host.back_door)
    taken = refusals = 0
    while refusals < REFUSALS:
        try:
            session = psycopg2.connect(hoarder)
        except psycopg2.OperationalError as refused:
            answer = str(refused).strip()
            refusals += 1
            time.sleep(0.05)
            continue
        held.enter_context(closing(session))
        taken, refusals = taken + 1, 0
        if taken > LIMIT:
            raise NoEffect(f"the server took {taken} connections")
    return answer


@contextmanager
def pinned(journal: Journal, server: Server) -> Iterator[Fault]:
    """A snapshot is held open: no row that died since may be cleared away."""
    with (
        journal.fault("xmin pinned", server.host.name) as fault,
        closing(psycopg2.connect(server.back_door)) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT pg_backend_pid()")
        [(pid,)] = cursor.fetchall()
        held = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND backend_xmin IS NOT NULL"
        fault.effect_of(lambda: server.sql(held, pid), 5, "the snapshot to hold an xmin")
        try:
            yield fault
            if not server.sql(held, pid):
                raise NoEffect("the snapshot was let go before the end")
        finally:
            fault.end()
            session.rollback()


@contextmanager
def database_full(journal: Journal, server: Server) -> Iterator[Fault]:
    """No byte more on its disk; begun again at the end if that was its end. Seen by its log."""
    service = server.service
    mark = service.mark()
    with disks.full(
        journal, server.data.parent, lambda: "No space left" in service.said_since(mark)
    ) as fault:
        service.wanted = False
        yield fault
    if not service.alive():
        service.start()
    wait_until(server.answers, ANSWERS_WITHIN, "PostgreSQL to answer")
