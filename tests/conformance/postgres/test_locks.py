"""The rows that a statement sees under its locks, on a real PostgreSQL: the facts that the protocol
and its model (faults/model) lean on. Where the product sends a statement, its own text is used.
"""

from __future__ import annotations

import threading
import time
from uuid import uuid4

import psycopg2
import pytest

from schedd.store.cluster.fence import END_BLOCKERS, LOCK_SHARDS, TIMELINE
from schedd.store.cluster.membership import TAKE
from support.sessions import Postgres
from support.wait import WAIT_TIMEOUT, wait_until

ME, YOU, OTHER = (str(uuid4()) for _ in range(3))


@pytest.fixture(autouse=True)
def owned(postgres: Postgres) -> None:
    """Tenures, and three shards of mine at epoch 1."""
    for tenure in (ME, YOU):
        postgres.now("INSERT INTO tenures (id, member, opened_at) VALUES (%s, 'm', now())", tenure)
    postgres.now(f"UPDATE shards SET owner = %s, epoch = 1, timeline = {TIMELINE} WHERE id < 3", ME)
    postgres.now("CREATE TABLE job (id int PRIMARY KEY, generation int, due int)")
    postgres.now("CREATE TABLE run (id text PRIMARY KEY, job int, state text, token int)")
    postgres.now("INSERT INTO job VALUES (1, 1, 100)")


def claim(postgres: Postgres) -> dict[str, object]:
    [[timeline]] = postgres.now(f"SELECT {TIMELINE}")
    return {"ids": [0, 1, 2], "epochs": [1, 1, 1], "tenure": ME, "timeline": timeline}


def test_a_lock_that_had_to_wait_gives_only_the_shards_that_are_still_its_own(
    postgres: Postgres,
) -> None:
    taker, owner = postgres.session(), postgres.session()
    taker.run("UPDATE shards SET owner = %s, epoch = 2 WHERE id = 1", YOU)
    waiting = owner.begin(LOCK_SHARDS.text, **claim(postgres))
    postgres.wait_until_blocked(owner)
    taker.commit()

    [(shards, _)] = waiting.result(WAIT_TIMEOUT)
    assert shards == [0, 2]


def test_the_second_of_two_takers_at_one_epoch_finds_another_epoch(postgres: Postgres) -> None:
    postgres.now("UPDATE tenures SET fenced_at = now() WHERE id = %s", ME)
    postgres.now("INSERT INTO tenures (id, member, opened_at) VALUES (%s, 'm', now())", OTHER)
    first, second = postgres.session(), postgres.session()
    seen = {"ids": [0], "epochs": [1], "timeline": claim(postgres)["timeline"]}
    taken = first.run(TAKE, **seen, tenure=YOU)
    waiting = second.begin(TAKE, **seen, tenure=OTHER)
    postgres.wait_until_blocked(second)
    first.commit()

    assert len(taken) == 1
    assert waiting.result(WAIT_TIMEOUT) == []


def test_a_check_in_a_side_cte_holds_nothing_back(postgres: Postgres) -> None:
    fencer, owner = postgres.session(), postgres.session()
    fencer.run("UPDATE tenures SET fenced_at = now() WHERE id = %s", ME)
    waiting = owner.begin(
        """WITH mine AS (SELECT 1 FROM tenures WHERE id = %s AND fenced_at IS NULL FOR SHARE),
        made AS (INSERT INTO run VALUES ('r', 1, 'PENDING', 0)) SELECT * FROM mine""",
        ME,
    )
    postgres.wait_until_blocked(owner)
    fencer.commit()
    assert waiting.result(WAIT_TIMEOUT) == []
    owner.commit()

    assert postgres.now("SELECT id FROM run") == [("r",)], "written, though it was fenced"


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        (
            """INSERT INTO run VALUES ('r', 1, 'PENDING', 0);
            UPDATE job SET due = 101 WHERE id = 1 AND generation = 1""",
            [("r",)],
        ),
        (
            """WITH advanced AS (UPDATE job SET due = 101 WHERE id = 1 AND generation = 1
            AND due = 100 RETURNING id)
            INSERT INTO run SELECT 'r', id, 'PENDING', 0 FROM advanced""",
            [],
        ),
    ],
    ids=["inserted, then advanced", "inserted from what advanced"],
)
def test_only_an_insert_from_the_advanced_timer_leaves_no_run_after_an_edit(
    postgres: Postgres, statement: str, left: list[tuple[str]]
) -> None:
    editor, owner = postgres.session(), postgres.session()
    editor.run("UPDATE job SET generation = 2 WHERE id = 1")
    waiting = owner.begin(statement)
    postgres.wait_until_blocked(owner)
    editor.commit()
    waiting.result(WAIT_TIMEOUT)
    owner.commit()

    assert postgres.now("SELECT id FROM run") == left


def test_a_statement_doesnt_see_its_own_assignments(postgres: Postgres) -> None:
    """So overlap counts the statement's own rows too (store/dispatch/assign.py)."""
    postgres.now("INSERT INTO run VALUES ('a', 1, 'PENDING', 0), ('b', 1, 'PENDING', 0)")
    postgres.now(
        """UPDATE run SET state = 'RUNNING' WHERE state = 'PENDING' AND NOT EXISTS
        (SELECT FROM run other WHERE other.job = run.job AND other.state = 'RUNNING')"""
    )

    assert postgres.now("SELECT count(*) FROM run WHERE state = 'RUNNING'") == [(2,)]


@pytest.mark.parametrize(("lock", "running"), [("FOR SHARE", 2), ("FOR NO KEY UPDATE", 1)])
def test_a_shared_lock_admits_two_runs_where_an_exclusive_one_admits_one(
    postgres: Postgres, lock: str, running: int
) -> None:
    postgres.now("INSERT INTO run VALUES ('a', 1, 'PENDING', 0), ('b', 1, 'PENDING', 0)")
    assign = """UPDATE run SET state = 'RUNNING' WHERE id = %s AND NOT EXISTS
        (SELECT FROM run other WHERE other.job = run.job AND other.state = 'RUNNING')"""
    one, two = postgres.session(), postgres.session()
    fence = f"SELECT 1 FROM shards WHERE id = 0 {lock}"
    one.run(fence)
    one.run(assign, "a")
    waiting = two.begin(fence)
    if lock != "FOR SHARE":
        postgres.wait_until_blocked(two)
        one.commit()
    waiting.result(WAIT_TIMEOUT)
    two.run(assign, "b")
    two.commit()
    one.commit()

    assert postgres.now("SELECT count(*) FROM run WHERE state = 'RUNNING'") == [(running,)]


@pytest.mark.parametrize(("lock", "children"), [(False, 0), (True, 1)])
def test_parents_that_end_at_once_make_a_child_if_its_job_is_locked_before_they_are_counted(
    postgres: Postgres, lock: bool, children: int
) -> None:
    postgres.now("INSERT INTO run VALUES ('p1', 2, 'RUNNING', 1), ('p2', 3, 'RUNNING', 1)")
    count = """INSERT INTO run SELECT 'child', 1, 'PENDING', 0 WHERE 2 =
        (SELECT count(*) FROM run WHERE id IN ('p1', 'p2') AND state = 'SUCCEEDED')"""
    one, two = postgres.session(), postgres.session()
    for session, parent in ((one, "p1"), (two, "p2")):
        session.run("UPDATE run SET state = 'SUCCEEDED' WHERE id = %s", parent)
    if lock:
        one.run("SELECT 1 FROM job WHERE id = 1 FOR NO KEY UPDATE")
        waiting = two.begin("SELECT 1 FROM job WHERE id = 1 FOR NO KEY UPDATE")
        postgres.wait_until_blocked(two)
        one.run(count)
        one.commit()
        waiting.result(WAIT_TIMEOUT)
        two.run(count)
    else:
        one.run(count)
        two.run(count)
        one.commit()
    two.commit()

    assert postgres.now("SELECT count(*) FROM run WHERE job = 1") == [(children,)]


def test_rows_locked_in_opposite_orders_are_a_deadlock(postgres: Postgres) -> None:
    postgres.now("INSERT INTO run VALUES ('a', 1, 'RUNNING', 1), ('b', 1, 'RUNNING', 1)")
    one, two = postgres.session(), postgres.session()
    end = "UPDATE run SET state = 'SUCCEEDED' WHERE id = %s"
    one.run(end, "a")
    two.run(end, "b")
    waiting = one.begin(end, "b")
    postgres.wait_until_blocked(one)

    def collide() -> None:
        two.run(end, "a")
        waiting.result(WAIT_TIMEOUT)

    with pytest.raises(psycopg2.errors.DeadlockDetected):
        collide()


def test_two_lanes_that_share_a_lock_starve_the_fencer(postgres: Postgres) -> None:
    one, two, fencer = (postgres.session() for _ in range(3))
    share = "SELECT 1 FROM shards WHERE id = 0 FOR SHARE"
    one.run(share)
    waiting = fencer.begin("UPDATE shards SET owner = NULL WHERE id = 0")
    postgres.wait_until_blocked(fencer)
    for _ in range(20):
        two.run(share)  # at once, though the fencer has waited for longer
        one.commit()
        one, two = two, one

    assert not waiting.done()
    one.commit()
    waiting.result(WAIT_TIMEOUT)


def test_two_lanes_that_exclude_each_other_do_not_starve_the_fencer(postgres: Postgres) -> None:
    one, two, fencer = (postgres.session() for _ in range(3))
    exclude = "SELECT 1 FROM shards WHERE id = 0 FOR NO KEY UPDATE"
    one.run(exclude)
    waiting = fencer.begin("UPDATE shards SET owner = NULL WHERE id = 0")
    postgres.wait_until_blocked(fencer)
    behind = two.begin(exclude)
    postgres.wait_until_blocked(two)
    one.commit()

    waiting.result(WAIT_TIMEOUT)
    assert not behind.done()
    fencer.commit()
    behind.result(WAIT_TIMEOUT)


TIMEOUTS = """SET statement_timeout = '400ms'; SET lock_timeout = '400ms';
    SET idle_in_transaction_session_timeout = '400ms'"""


def test_a_session_that_idles_in_a_transaction_is_ended(postgres: Postgres) -> None:
    sleeper = postgres.session()
    sleeper.run(TIMEOUTS)
    sleeper.run("SELECT 1 FROM shards WHERE id = 0 FOR UPDATE")

    assert wait_until(lambda: not postgres.alive(sleeper), WAIT_TIMEOUT, "its end")


def test_only_the_fencer_ends_a_copy_whose_client_sleeps(
    postgres: Postgres,
) -> None:
    """So there is no COPY FROM STDIN in a transaction that holds locks (P1.5)."""
    awake = threading.Event()
    sleeper, fencer, other = (postgres.session() for _ in range(3))

    class Asleep:
        def read(self, size: int) -> bytes:
            awake.wait(2 * WAIT_TIMEOUT)
            return b""

    sleeper.run(f"SET application_name = 'schedd/{ME}'")
    sleeper.run(TIMEOUTS)
    sleeper.run("SELECT 1 FROM shards WHERE id = 0 FOR UPDATE")

    def copy() -> None:
        with pytest.raises(psycopg2.Error):
            sleeper.connection.cursor().copy_expert("COPY run FROM STDIN", Asleep())

    copying = threading.Thread(target=copy)
    copying.start()
    waiting = fencer.begin("UPDATE shards SET owner = NULL WHERE id = 0")
    postgres.wait_until_blocked(fencer)
    asleep_until = time.monotonic() + 1.5  # well past each of its timeouts
    wait_until(lambda: time.monotonic() > asleep_until, WAIT_TIMEOUT, "the timeouts to pass")
    assert not waiting.done()

    other.run(END_BLOCKERS, pid=fencer.pid, names=[f"schedd/{ME}"])

    waiting.result(WAIT_TIMEOUT)
    awake.set()
    copying.join(WAIT_TIMEOUT)
    assert not copying.is_alive()
