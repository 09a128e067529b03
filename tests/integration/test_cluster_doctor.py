"""`schedctl cluster doctor` on real processes: healthy parts are reported, and faults are found."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any

import psycopg2
import pytest

from schedctl.dev.servers import postgres
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

Found = dict[tuple[str, str, str | None], Any]


@pytest.fixture(scope="module")
def cluster(pair: DevCluster) -> DevCluster:
    """Two members whose leases outlive any look at them, and a worker."""
    return pair


def doctor_findings(cluster: DevCluster, *options: str, code: int = 0) -> Found:
    """Return the findings of the doctor, which exits with `code`."""
    done = cluster.schedctl(*options, "cluster", "doctor", "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    return {(one["area"], one["check"], one["subject"]): one for one in json.loads(done.stdout)}


def about(found: Found, area: str, check: str) -> dict[str | None, str]:
    """Subject → severity, of one check."""
    return {at[2]: one["severity"] for at, one in found.items() if at[:2] == (area, check)}


def test_a_healthy_cluster_has_no_bad_finding_and_every_area_is_checked(
    cluster: DevCluster,
) -> None:
    found = doctor_findings(cluster)
    areas = {area for area, _, _ in found}
    assert areas == {
        "etcd",
        "postgres",
        "cluster",
        "members",
        "clocks",
        "workers",
        "results",
        "work",
    }
    names = {member["name"] for member in cluster.record["members"]}
    everybody = dict.fromkeys(names, "OK")
    assert about(found, "members", "answers") == everybody
    assert about(found, "clocks", "cluster time") == everybody
    assert about(found, "clocks", "wall clock") == everybody | {"this machine": "OK"}
    assert about(found, "cluster", "shards") == {None: "OK"}
    [spool] = [one for at, one in found.items() if at[:2] == ("workers", "spool")]
    assert "MiB free" in spool["what"], "the worker says how much room it has"
    assert all(one["why"] and one["remedy"] for one in found.values() if one["severity"] != "OK")


def test_a_hung_member_is_detected_by_the_other(cluster: DevCluster) -> None:
    asked, still = cluster.record["members"]
    cluster.pause(still["name"])
    try:
        found = doctor_findings(cluster, "--endpoints", asked["grpc"])
    finally:
        cluster.resume(still["name"])
    answers = about(found, "members", "answers")
    assert answers == {asked["name"]: "OK", still["name"]: "WARN"}


def test_a_pause_is_found_with_its_note_and_its_remedy(cluster: DevCluster) -> None:
    cluster.schedctl("cluster", "pause", "--note", "doctor's test").check_returncode()
    try:
        paused = doctor_findings(cluster)["cluster", "pause", None]
    finally:
        cluster.schedctl("cluster", "resume").check_returncode()
    assert paused["severity"] == "WARN"
    assert "doctor's test" in paused["what"]
    assert paused["remedy"] == "when the reason for the pause is over: `schedctl cluster resume`"


def _admin(cluster: DevCluster, *statements: str) -> None:
    dsn = postgres.dsn(
        cluster.sql_port, database="schedd", role=postgres.ADMIN, password=cluster.password
    )
    with postgres.connect(dsn) as session, session.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_a_privilege_revoked_on_one_table_is_found_with_its_grant(cluster: DevCluster) -> None:
    _admin(cluster, "REVOKE ALL ON audit FROM schedd")
    try:
        found = doctor_findings(cluster, code=1)
    finally:
        _admin(cluster, "GRANT ALL ON audit TO schedd")
    assert found["postgres", "answers", None]["severity"] == "OK"
    assert (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE audit TO schedd"
        in (found["postgres", "privileges", None]["remedy"])
    )
    tables = found["postgres", "tables", None]
    assert "permission denied for table audit" in tables["what"]
    assert tables["remedy"].startswith("`schedd migrate` prints the GRANT")


def test_without_a_connection_left_doctor_and_calls_name_the_limit(cluster: DevCluster) -> None:
    _admin(
        cluster,
        "ALTER ROLE schedd CONNECTION LIMIT 0",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'schedd'",
    )
    try:
        found = doctor_findings(cluster, code=1)
        status = cluster.schedctl("cluster", "status")
    finally:
        _admin(cluster, "ALTER ROLE schedd CONNECTION LIMIT -1")
    answers = found["postgres", "answers", None]
    assert answers["what"].startswith("PostgreSQL has no connection left: too many connections")
    assert answers["remedy"].startswith("Raise CONNECTION LIMIT")
    assert status.returncode == 6, status.stdout + status.stderr
    assert "PostgreSQL has no connection left" in status.stderr
    assert "try: Raise CONNECTION LIMIT" in status.stderr


def test_a_loss_of_etcd_is_bad_and_the_exit_code_says_so(cluster: DevCluster) -> None:
    cluster.pause("etcd")
    try:
        found = doctor_findings(cluster, code=1)
    finally:
        cluster.resume("etcd")
    assert set(about(found, "etcd", "answers").values()) == {"BAD"}


@pytest.mark.alone
def test_a_session_that_locks_a_table_is_named_with_the_statement_that_ends_it(
    cluster: DevCluster,
) -> None:
    [asked, *_] = cluster.record["members"]
    options = "-c idle_in_transaction_session_timeout=0"
    with (
        closing(psycopg2.connect(cluster.dsn, options=options)) as session,
        session.cursor() as cursor,
    ):
        cursor.execute("LOCK TABLE runs, shards IN ACCESS EXCLUSIVE MODE")

        def noted() -> str:
            answer = cluster.get(asked["name"], "/readyz")
            return answer.body.decode() if answer and b"lock_timeout" in answer.body else ""

        shown = wait_until(noted, WAIT_TIMEOUT, "/readyz to name the lock")
        found = doctor_findings(cluster, code=1)
        pid = session.get_backend_pid()
    assert "waited for another session's lock" in shown
    assert "pg_terminate_backend(PID)" in shown
    held = found["postgres", "locks", "runs, shards"]
    assert held["severity"] == "BAD"
    assert f"pid {pid} (user {postgres.ROLE})" in held["what"]
    assert f"pg_terminate_backend({pid})" in held["remedy"]
    assert about(found, "postgres", "answers") == {None: "OK"}
    assert about(found, "postgres", "tables") == {None: "BAD"}
    assert not about(found, "cluster", "pause"), "it isn't known"


@pytest.mark.alone
def test_a_hung_postgresql_is_detected_soon_and_reads_report_it(
    cluster: DevCluster,
) -> None:
    sessions = "SELECT pid FROM pg_stat_activity WHERE usename = %s AND pid <> pg_backend_pid()"
    pids = [pid for (pid,) in cluster.sql(sessions, postgres.ROLE)]
    try:
        cluster.pause("postgres")
        _signal(pids, signal.SIGSTOP)
        began = time.monotonic()
        found = doctor_findings(cluster, code=1)
        took = time.monotonic() - began
        status = cluster.schedctl("--timeout", "3s", "cluster", "status")
    finally:
        cluster.resume("postgres")
        _signal(pids, signal.SIGCONT)
    answers = found["postgres", "answers", None]
    assert answers["severity"] == "BAD"
    assert "no answer within" in answers["what"]
    assert took < 9, "it doesn't wait as long as the database does"
    assert status.returncode == 6, status.stdout + status.stderr
    assert "DATABASE_SILENT" in status.stderr
    assert "nothing was changed" not in status.stderr, "it was a read"


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a session may have ended
            os.kill(pid, number)
