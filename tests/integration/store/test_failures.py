"""When PostgreSQL fails (P1.3): what is tried again, what is unknown, what is away."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import Verdict
from schedd.store.connection.database import Database, url_of
from schedd.store.schema import migrate
from schedkit.clock import boottime
from schedkit.errors import Fault, Misconfigured, OutcomeUnknown, Rejected, Unavailable
from support.postgres import ScratchServer, private_postgres, restart
from support.store import LANES, START, World, draft, firing, report, wait_for_waiter
from support.wait import WAIT_TIMEOUT, wait_until


async def test_a_lost_connection_is_tried_again_before_anything_was_committed(
    world: World, server: ScratchServer
) -> None:
    me = await world.member()
    job = await world.job()
    end_sessions_of(server, me.tenure)

    assert len((await me.fire(firing(job))).runs) == 1


async def test_a_backend_that_ends_inside_a_transaction_leaves_nothing_behind(
    world: World, server: ScratchServer
) -> None:
    me = await world.member()
    tries: list[int] = []

    def body(connection: Connection) -> int:
        tries.append(1)
        connection.exec_driver_sql("UPDATE term SET term = term + 1")
        if len(tries) == 1:
            end_sessions_of(server, me.tenure)
        return int(connection.exec_driver_sql("SELECT term FROM term").scalar_one())

    assert await me.store.database.call(body) == 1
    assert len(tries) == 2
    assert await world.sql("SELECT term FROM term") == [(1,)]


async def test_an_unanswered_commit_is_an_unknown_outcome_and_isnt_tried_again(
    world: World, server: ScratchServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1.3: it was committed, and a second try would be refused as done already."""
    me = await world.member()
    [run] = (await me.fire(firing(await world.job()))).runs
    [assigned] = await me.assigned(draft(run))
    lose_the_answer_to_commit(me.store.database, server, me.tenure)

    with pytest.raises(OutcomeUnknown, match="COMMIT was sent"):
        await me.store.results.accept([report(assigned)])

    assert (await world.run_row(run.key.run_id))["state"] == State.SUCCEEDED
    assert await me.store.results.accept([report(assigned)]) == [Verdict.REPEATED]


async def test_a_commit_that_postgresql_answers_with_rollback_is_no_success(world: World) -> None:
    """P1.4: a body that ignores the error of a statement doesn't count as committed."""
    me = await world.member()

    def body(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE term SET term = term + 1")
        with pytest.raises(DBAPIError):
            connection.exec_driver_sql("SELECT 1 / 0")

    before = await world.sql("SELECT term FROM term")
    with pytest.raises(OutcomeUnknown, match="ROLLBACK"):
        await me.store.database.call(body)
    assert await world.sql("SELECT term FROM term") == before


async def test_after_an_unknown_outcome_the_rows_decide_and_the_timer_fires_once(
    world: World, server: ScratchServer
) -> None:
    """P1.4: fired again from what was known before, the rows refuse it."""
    me = await world.member()
    job = await world.job()
    lose_the_answer_to_commit(me.store.database, server, me.tenure)

    with pytest.raises(OutcomeUnknown):
        await me.fire(firing(job))
    again = await me.fire(firing(job))

    assert (again.runs, again.refused) == ([], [job.definition.job_id])
    assert await world.sql("SELECT count(*) FROM runs") == [(1,)]


async def test_a_deadlock_is_tried_again(world: World) -> None:
    """P1.6: the transaction that was rolled back begins again; its caller never sees that."""
    me = await world.member()
    await world.sql("CREATE TABLE pair (id int PRIMARY KEY)")
    await world.sql("INSERT INTO pair VALUES (1), (2)")
    both = threading.Barrier(2)
    tries: list[int] = []

    def crossing(first: int, second: int) -> None:
        def body(connection: Connection) -> None:
            tries.append(first)
            connection.exec_driver_sql("SELECT 1 FROM pair WHERE id = %s FOR UPDATE", (first,))
            if len(tries) <= 2:
                both.wait(WAIT_TIMEOUT)
            connection.exec_driver_sql("SELECT 1 FROM pair WHERE id = %s FOR UPDATE", (second,))

        me.store.database.transact(body)

    await asyncio.gather(asyncio.to_thread(crossing, 1, 2), asyncio.to_thread(crossing, 2, 1))

    assert len(tries) == 3


async def test_a_lock_that_isnt_given_is_unavailable_after_two_tries(world: World) -> None:
    """P1.6: tried again, but not for ever: each try waits for its whole timeout."""
    me = await world.member()
    other = await world.member(take=False)
    waits: list[int] = []
    held, through = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> None:
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql("SELECT 1 FROM term FOR UPDATE")
        loop.call_soon_threadsafe(held.set)
        through.wait(30)

    def wait(connection: Connection) -> None:
        waits.append(1)
        connection.exec_driver_sql("SET LOCAL lock_timeout = '100ms'")
        connection.exec_driver_sql("SELECT 1 FROM term FOR UPDATE")

    holding = asyncio.create_task(other.store.database.call(hold), name="hold")
    await held.wait()
    with pytest.raises(Unavailable, match="lock timeout"):
        await me.store.database.call(wait)
    through.set()
    await holding

    assert len(waits) == 2


async def test_a_bug_in_a_statement_is_a_fault(world: World) -> None:
    await world.member()
    with pytest.raises(Fault, match="syntax error"):
        await world.sql("SELEC 1")


async def test_a_crashed_server_is_unavailable_until_it_restarts() -> None:
    with private_postgres(copied=True, synchronous_commit="on") as server:
        dsn = server.create_migrated()
        async with World.at(dsn) as world:
            me = await world.member()
            job = await world.job()
            server.process.send(signal.SIGQUIT)  # at once, as in a crash
            wait_until(lambda: not server.process.alive(), WAIT_TIMEOUT, "the server's end")
            with pytest.raises(Unavailable):
                await me.fire(firing(job))
            restart(server)

            assert len((await me.fire(firing(job))).runs) == 1


async def test_a_server_that_accepts_connections_and_answers_nothing_has_its_own_remedy() -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1")
    port = silent.sockets[0].getsockname()[1]
    database = Database(f"postgresql://schedd@127.0.0.1:{port}/schedd")
    try:
        since = boottime()
        assert f"127.0.0.1:{port} accepts connections" in await database.silence_remedy(since)
        database.answered_at = since + 1
        assert "pg_stat_activity" in await database.silence_remedy(since), "other calls succeed"
        silent.close()
        assert not await database.silence_remedy(since + 2), "nothing accepts connections"
    finally:
        silent.close()
        database.close()


async def test_a_wrong_dsn_is_the_operators_error(server: ScratchServer) -> None:
    with pytest.raises(Misconfigured):
        url_of("mysql://somewhere/else")
    with pytest.raises(Misconfigured):
        url_of("no url at all")
    with pytest.raises(Misconfigured, match="invalid PostgreSQL URL"):
        url_of("postgresql://host:port/db")
    with pytest.raises(Rejected, match="does not exist"):
        migrate.upgrade(server.admin_dsn.replace("/postgres", "/nowhere"))


def test_a_bare_url_means_psycopg2() -> None:
    assert url_of("postgresql://a@b/c").drivername == "postgresql+psycopg2"
    assert url_of("postgresql+psycopg2://a@b/c").drivername == "postgresql+psycopg2"


async def test_a_pooler_may_set_any_time_zone_instants_stay_utc(
    world: World, server: ScratchServer
) -> None:
    me = await world.member()
    job = await world.job()
    name = world.dsn.rpartition("/")[2]
    server.execute(f"ALTER DATABASE \"{name}\" SET timezone = 'Asia/Kathmandu'")
    fresh = await world.member(take=False)

    [timer] = await fresh.store.owner.timers([job.definition.job_id])

    assert timer.due_at == START
    assert str(timer.due_at) == str(START)
    assert await me.store.owner.timers([job.definition.job_id]) == [timer]


async def test_each_lane_keeps_to_its_own_thread(world: World) -> None:
    me = await world.member()

    def where(connection: Connection) -> str:
        return threading.current_thread().name

    names = [await me.store.database.on_lane([shard], where) for shard in (0, 1, 2, 3, 200)]

    assert len(set(names)) == LANES
    assert names[0] == names[2] == names[4] != names[1] == names[3]


async def test_user_calls_wait_for_the_owners_batch_and_not_for_its_lane(world: World) -> None:
    """A lane that waits for a shard's row holds no other call up."""
    me = await world.member()
    user = await world.member(take=False)
    job = await world.job(shard=1)
    held, waits, answered = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT 1 FROM shards WHERE id = 1 FOR NO KEY UPDATE")
        loop.call_soon_threadsafe(held.set)
        wait_for_waiter(connection)
        loop.call_soon_threadsafe(waits.set)

        def still_here() -> bool:
            connection.exec_driver_sql("SELECT 1")  # an idle one would be ended
            return answered.is_set()

        wait_until(still_here, 3, "the user's call to be answered while the lane waits")

    holding = asyncio.create_task(user.store.database.call(hold), name="hold")
    await held.wait()
    waiting = asyncio.create_task(me.fire(firing(job)), name="fire")
    await waits.wait()
    assert await me.store.users.get_job("default", job.definition.name) == job
    answered.set()
    await holding
    assert len((await waiting).runs) == 1


def end_sessions_of(server: ScratchServer, tenure: object) -> None:
    server.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        f" WHERE application_name = 'schedd/{tenure}'"
    )


def lose_the_answer_to_commit(database: Database, server: ScratchServer, tenure: object) -> None:
    """The next COMMIT is done by the server, and its answer never arrives."""
    left = [1]

    def commit_and_lose(connection: Connection) -> None:
        if not left:
            return
        left.clear()
        raw = connection.connection.dbapi_connection
        with raw.cursor() as cursor:
            cursor.execute("COMMIT")
        end_sessions_of(server, tenure)

    event.listen(database._engine, "commit", commit_and_lose)
    database._discard_kept()  # the next call uses a connection that was checked before
