"""PostgreSQL and etcd reject a running cluster: members wait, name the cause, and lose nothing.

REJECTED_FOR=30 REJECTED_JOBS=100 are the full figures; the default is shorter, for CI.
REJECTED_EVIDENCE=FILE adds them to a file: docs/evidence/rejections.jsonl is what
docs/evidence/fault-tests.md shows.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg2
import pytest

from acceptance.conftest import pids
from schedclient import SyncClient
from schedctl.dev.servers import postgres
from support.cluster import DevCluster, dev_cluster, importing
from support.etcd import _find_etcdctl
from support.wait import WAIT_TIMEOUT, wait_until

SECONDS = float(os.environ.get("REJECTED_FOR", "1"))
JOBS = int(os.environ.get("REJECTED_JOBS", "4"))
NAMED_WITHIN = 10.0
WELL_WITHIN = 8.0
RELEASE_RATE = 100
"""Late runs that a cluster starts in a second, by default (`catch_up.release_rate`)."""
MEMBERS = ("m1", "m2")
DISK = 320 * 1024 * 1024
QUOTA = 32 * 1024 * 1024
BALLAST = 1024 * 1024
"""Bytes of a disk of PostgreSQL, of etcd's quota, of each value that fills it."""

HANDLERS = """
from schedclient import handler


@handler("quick")
async def quick(payload, ctx):
    return None
"""

GAPS = """
SELECT count(*) FROM (
    SELECT job_id, scheduled_at, count,
        lead(scheduled_at) OVER (PARTITION BY job_id ORDER BY scheduled_at) AS after
    FROM runs
) r WHERE after <> scheduled_at + count * interval '1 s'
"""
"""Due times that no row accounts for, or two do."""
UNENDED = """
SELECT count(*) FROM runs
WHERE state IN ('PENDING', 'RUNNING', 'RETRYING') AND scheduled_at < to_timestamp(%s)
"""
FAILED = "SELECT count(*) FROM runs WHERE state IN ('FAILED', 'CANCELLED')"
NEWEST = """
SELECT count(*), extract(epoch FROM min(newest))
FROM (SELECT max(scheduled_at) AS newest FROM runs GROUP BY job_id) r
"""


@dataclass(frozen=True)
class World:
    """A cluster under load, and what an operator may do to its PostgreSQL and etcd."""

    cluster: DevCluster

    @property
    def data(self) -> Path:
        return self.cluster.directory / "postgres"

    @property
    def data_disk(self) -> Path:
        return self.cluster.directory / "tablespace"

    @property
    def wal_disk(self) -> Path:
        return self.data / "pg_wal"

    def admin(self, *statements: str, database: str = "postgres") -> None:
        port, password = self.cluster.sql_port, self.cluster.password
        dsn = postgres.dsn(port, database=database, role=postgres.ADMIN, password=password)
        with postgres.connect(dsn) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def end_sessions(self) -> None:
        self.admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = 'schedd' OR datname LIKE 'schedd%'"
        )

    def change_passwords(self, password: str) -> None:
        self.admin(f"ALTER ROLE schedd PASSWORD '{password}'")
        self.etcdctl("user", "passwd", "schedd", "--interactive=false", stdin=password)

    def reload(self) -> None:
        for member in MEMBERS:
            self.cluster.process(member).send(signal.SIGHUP)

    def etcdctl(self, *arguments: str, stdin: str = "") -> str:
        [endpoint] = self.cluster.etcd.endpoints
        user = f"root:{self.cluster.password}"
        done = subprocess.run(
            [_find_etcdctl(), "--endpoints", endpoint, "--user", user, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            check=True,
            input=stdin.encode(),
            capture_output=True,
            timeout=30,
        )
        return done.stdout.decode()

    def readiness(self) -> dict[str, str]:
        """By member why it isn't ready; nothing where it is."""
        found = {}
        for member in MEMBERS:
            answer = self.cluster.get(member, "/readyz")
            if answer is not None:
                found[member] = " | ".join(json.loads(answer.body)["reasons"])
        return found


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Its data lies on a small disk, its WAL on another one, where disks can be mounted."""
    folder = tmp_path_factory.mktemp("handlers")
    (folder / "rejected_handlers.py").write_text(HANDLERS)
    with (
        ExitStack() as disks,
        dev_cluster(
            request.session,
            start=False,
            members=0,
            workers=0,
            slots=64,
            env=importing(folder),
            overrides=[
                'workerd.handlers=["rejected_handlers"]',
                "postgres.max_wal_size=64MB",
                "postgres.min_wal_size=32MB",
                f"etcd.quota-backend-bytes={QUOTA}",
            ],
        ) as cluster,
    ):
        world = World(cluster)
        cluster.up()
        if disks.enter_context(small_disk(world.data_disk, world)):
            world.admin(
                f"CREATE TABLESPACE small LOCATION '{world.data_disk}'",
                "ALTER DATABASE schedd SET TABLESPACE small",
            )
            cluster.down()
            wal = world.wal_disk.rename(world.wal_disk.with_name("pg_wal.before"))
            disks.enter_context(small_disk(world.wal_disk, world))
            shutil.copytree(wal, world.wal_disk, dirs_exist_ok=True)
            give_to_postgres(world.wal_disk, world)
        cluster.members, cluster.workers = len(MEMBERS), 1
        cluster.up()
        with SyncClient(cluster.endpoints) as client:
            for number in range(JOBS):
                client.jobs.create(
                    f"tick-{number}",
                    cron="* * * * * *",
                    python={"handler": "quick"},
                    catch_up={"policy": "all"},
                    overlap="allow",
                )
        wait_until(lambda: not any(world.readiness().values()), WAIT_TIMEOUT, "all to be ready")
        yield world
        cluster.down()


@contextmanager
def small_disk(folder: Path, world: World) -> Iterator[bool]:
    """A disk of `DISK` bytes for PostgreSQL at this folder; False: mounting isn't allowed here."""
    folder.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        yield False
        return
    try:
        give_to_postgres(folder, world)
        yield True
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def give_to_postgres(folder: Path, world: World) -> None:
    """Give all in it to the user that PostgreSQL runs as."""
    owner = world.data.stat()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def fill(folder: Path) -> Path:
    """Leave the disk of this folder no room. Returns the file to remove."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


@contextmanager
def password_changed(world: World) -> Iterator[None]:
    world.admin("ALTER ROLE schedd PASSWORD 'other'")
    world.end_sessions()
    try:
        yield
    finally:
        world.admin(f"ALTER ROLE schedd PASSWORD '{world.cluster.password}'")


@contextmanager
def rules_edited(world: World) -> Iterator[None]:
    """`pg_hba.conf` has no rule for the role any more."""
    right = (world.data / "pg_hba.conf").read_text()
    _apply_rules(world, f"host all {postgres.ADMIN} all scram-sha-256\n", admits=False)
    world.end_sessions()
    try:
        yield
    finally:
        _apply_rules(world, right, admits=True)


def _apply_rules(world: World, text: str, *, admits: bool) -> None:
    (world.data / "pg_hba.conf").write_text(text)
    world.admin("SELECT pg_reload_conf()")
    wait_until(lambda: _admits(world) is admits, WAIT_TIMEOUT, "the new rules")


def _admits(world: World) -> bool:
    try:
        psycopg2.connect(world.cluster.dsn).close()
    except psycopg2.OperationalError:
        return False
    return True


@contextmanager
def database_renamed(world: World) -> Iterator[None]:
    world.admin("ALTER DATABASE schedd ALLOW_CONNECTIONS off")
    world.end_sessions()
    wait_until(lambda: _renamed(world, "schedd", "away"), WAIT_TIMEOUT, "the rename")
    try:
        yield
    finally:
        _renamed(world, "away", "schedd")
        world.admin("ALTER DATABASE schedd ALLOW_CONNECTIONS on")


def _renamed(world: World, old: str, new: str) -> bool:
    try:
        world.admin(f"ALTER DATABASE {old} RENAME TO {new}")
    except Exception as error:
        if "being accessed" not in str(error):
            raise
        return False
    return True


@contextmanager
def grants_revoked(world: World) -> Iterator[None]:
    world.admin("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM schedd", database="schedd")
    try:
        yield
    finally:
        world.admin("GRANT ALL ON ALL TABLES IN SCHEMA public TO schedd", database="schedd")


@contextmanager
def rows_hidden(world: World) -> Iterator[None]:
    for switch in ("ENABLE", "FORCE"):
        world.admin(f"ALTER TABLE runs {switch} ROW LEVEL SECURITY", database="schedd")
    try:
        yield
    finally:
        for switch in ("NO FORCE", "DISABLE"):
            world.admin(f"ALTER TABLE runs {switch} ROW LEVEL SECURITY", database="schedd")


@contextmanager
def no_connection_left(world: World) -> Iterator[None]:
    world.admin("ALTER ROLE schedd CONNECTION LIMIT 0")
    world.end_sessions()
    try:
        yield
    finally:
        world.admin("ALTER ROLE schedd CONNECTION LIMIT -1")


@contextmanager
def no_time_for_statements(world: World) -> Iterator[None]:
    world.admin("ALTER ROLE schedd SET statement_timeout = '1ms'")
    world.end_sessions()
    try:
        yield
    finally:
        limit = postgres.ROLE_LIMITS["statement_timeout"]
        world.admin(f"ALTER ROLE schedd SET statement_timeout = '{limit}'")
        world.end_sessions()


@contextmanager
def read_only(world: World) -> Iterator[None]:
    world.admin("ALTER DATABASE schedd SET default_transaction_read_only = on")
    world.end_sessions()
    try:
        yield
    finally:
        world.admin("ALTER DATABASE schedd RESET default_transaction_read_only")


@contextmanager
def tables_dropped(world: World) -> Iterator[None]:
    """As `pg_restore --clean` does under running members, for the time of the restore."""
    world.admin("ALTER SCHEMA public RENAME TO away", "CREATE SCHEMA public", database="schedd")
    try:
        yield
    finally:
        world.admin("DROP SCHEMA public", "ALTER SCHEMA away RENAME TO public", database="schedd")


@contextmanager
def etcd_password_changed(world: World) -> Iterator[None]:
    right = world.cluster.password or ""
    world.etcdctl("user", "passwd", "schedd", "--interactive=false", stdin="other")
    try:
        yield
    finally:
        world.etcdctl("user", "passwd", "schedd", "--interactive=false", stdin=right)


@contextmanager
def etcd_permission_revoked(world: World) -> Iterator[None]:
    world.etcdctl("role", "revoke-permission", "schedd", "", "--prefix")
    try:
        yield
    finally:
        world.etcdctl("role", "grant-permission", "schedd", "readwrite", "", "--prefix")


@contextmanager
def disk_full(world: World) -> Iterator[None]:
    """The disk of the database's files. The disk of the WAL has room."""
    if not os.path.ismount(world.data_disk):
        pytest.skip("mounting a disk takes root")
    filler = fill(world.data_disk)
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def etcd_full(world: World) -> Iterator[None]:
    """Etcd's database reaches its quota, and the alarm NOSPACE is raised."""
    with suppress(subprocess.CalledProcessError):
        for _ in range(QUOTA // BALLAST + 1):
            world.etcdctl("put", "ballast", stdin="x" * BALLAST)
    assert "NOSPACE" in world.etcdctl("alarm", "list")
    try:
        yield
    finally:
        world.etcdctl("del", "ballast")
        status = json.loads(world.etcdctl("endpoint", "status", "-w", "json"))
        world.etcdctl("compact", str(status[0]["Status"]["header"]["revision"]))
        world.etcdctl("defrag")
        world.etcdctl("alarm", "disarm")


CHANGES: Mapping[str, tuple[Callable[[World], object], str]] = {
    "password changed": (password_changed, "PostgreSQL rejects the login of role schedd"),
    "rules edited": (rules_edited, "rejects the login of role schedd: no pg_hba.conf entry"),
    "database renamed": (database_renamed, "PostgreSQL doesn't serve the database"),
    "grants revoked": (grants_revoked, "PostgreSQL denies a privilege"),
    "tables dropped": (tables_dropped, "The database's schema isn't the one"),
    "rows hidden": (rows_hidden, "PostgreSQL hides rows from schedd"),
    "no connection left": (no_connection_left, "PostgreSQL has no connection left"),
    "no time for statements": (no_time_for_statements, "due to statement timeout"),
    "read-only": (read_only, "PostgreSQL is read-only"),
    "disk full": (disk_full, "PostgreSQL's disk is full"),
    "etcd full": (etcd_full, "etcd's database is full"),
    "etcd permission revoked": (etcd_permission_revoked, "etcd denies the user a permission"),
    "etcd password changed": (etcd_password_changed, "etcd rejects the login"),
}


def shown(cluster: DevCluster, cause: str) -> bool:
    page = cluster.get("m1", "/")
    return page is not None and cause.casefold() in html.unescape(page.body.decode()).casefold()


def logged(cluster: DevCluster, cause: str) -> bool:
    return cause in cluster.log("m1").replace("\\'", "'")


@pytest.mark.parametrize("change", CHANGES)
def test_a_rejection_ends_no_process_is_named_and_loses_no_due_time(
    world: World, change: str, figure: Callable[[str], None]
) -> None:
    broken, cause = CHANGES[change]
    cluster, before = world.cluster, pids(world.cluster)

    with broken(world):
        began = time.monotonic()
        wait_until(
            lambda: all(cause in reason for reason in world.readiness().values()),
            NAMED_WITHIN,
            f"every /readyz to say {cause!r}",
        )
        named = time.monotonic() - began
        metrics = cluster.get("m1", "/metrics")
        assert metrics is not None
        dependency = "etcd" if cause.startswith("etcd") else "postgresql"
        series = rf'^schedd_dependency_failure{{dependency="{dependency}",reason="\w+"}} 1'
        assert re.search(series, metrics.body.decode(), re.MULTILINE), dependency
        wait_until(lambda: shown(cluster, cause), NAMED_WITHIN, "the overview to name the cause")
        wait_until(lambda: logged(cluster, cause), NAMED_WITHIN, "the log to name the cause")
        doctor = cluster.schedctl("cluster", "doctor")
        assert cause in " ".join(doctor.stdout.split()), doctor.stdout + doctor.stderr
        wait_until(lambda: time.monotonic() > began + SECONDS, SECONDS + 1, "the outage's end")
    well = recovery(world)
    assert pids(cluster) == before
    assert all(cluster.process(name).alive() for name in before)
    record(change, cause, named, well)
    figure(f"rejections, {change}: named after {named:.1f} s, well after {well:.1f} s")


def test_a_reload_applies_new_passwords(world: World, figure: Callable[[str], None]) -> None:
    cluster, before = world.cluster, pids(world.cluster)
    right, new = cluster.password or "", "another"
    files = [cluster.directory / f"{member}.toml" for member in MEMBERS]
    old = [file.read_text() for file in files]
    world.change_passwords(new)
    world.end_sessions()
    wait_until(
        lambda: all("rejects the login" in reason for reason in world.readiness().values()),
        NAMED_WITHIN,
        "every member to be rejected",
    )
    try:
        for file, text in zip(files, old, strict=True):
            assert text.count(right) == 2
            file.write_text(text.replace(right, new))
        reloaded = time.monotonic()
        world.reload()
        wait_until(lambda: not any(world.readiness().values()), WELL_WITHIN, "all to be ready")
        well = time.monotonic() - reloaded
    finally:
        world.change_passwords(right)
        for file, text in zip(files, old, strict=True):
            file.write_text(text)
    world.end_sessions()
    world.reload()
    recovery(world)
    assert pids(cluster) == before
    assert "reloaded: etcd.password, postgres.dsn" in cluster.log("m1")
    figure(f"rejections, new passwords by reload: well after {well:.1f} s")


def test_a_full_disk_of_the_wal_ends_postgresql_and_nothing_else(
    world: World, figure: Callable[[str], None]
) -> None:
    """PostgreSQL panics, and can't recover before it has room. Then something starts it again."""
    if not os.path.ismount(world.wal_disk):
        pytest.skip("mounting a disk takes root")
    cluster, before = world.cluster, pids(world.cluster)
    postmaster = cluster.process("postgres")
    filler = fill(world.wal_disk)
    began = time.monotonic()

    def ended() -> bool:
        with suppress(psycopg2.Error):
            world.admin("SELECT pg_switch_wal()")
        return not postmaster.alive()

    wait_until(ended, WAIT_TIMEOUT, "the end of PostgreSQL")
    down = time.monotonic()
    wait_until(
        lambda: all("Start PostgreSQL" in reason for reason in world.readiness().values()),
        NAMED_WITHIN,
        "every /readyz to say what to do",
    )
    named, said = time.monotonic() - down, world.readiness()["m1"]
    wait_until(lambda: time.monotonic() > began + SECONDS, SECONDS + 1, "the outage's end")
    filler.unlink()
    corrected = time.monotonic()
    cluster.up()
    started = time.monotonic() - corrected
    well = started + recovery(world)
    after = pids(cluster)
    assert {**after, "postgres": 0} == {**before, "postgres": 0}
    record("WAL disk full", "Connection refused", named, well)
    figure(
        f"rejections, disk of the WAL full: {said!r} after {named:.1f} s, well after {well:.1f} s,"
        f" of which PostgreSQL's start took {started:.1f} s"
    )


def record(change: str, cause: str, named: float, well: float) -> None:
    """Add the figures to the file that the environment names."""
    if not (file := os.environ.get("REJECTED_EVIDENCE")):
        return
    line = {
        "change": change,
        "cause": cause,
        "named_s": round(named, 1),
        "well_s": round(well, 1),
        "lasted_s": SECONDS,
        "jobs": JOBS,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    with Path(file).open("a", encoding="utf-8") as evidence:
        evidence.write(json.dumps(line) + "\n")


def recovery(world: World) -> float:
    """Seconds until every member is ready; then each due time must be accounted for, once."""
    corrected = time.monotonic()
    wait_until(lambda: not any(world.readiness().values()), WELL_WITHIN, "all to be ready")
    well, now = time.monotonic() - corrected, time.time()

    def caught_up() -> bool:
        [(jobs, newest)] = world.cluster.sql(NEWEST)
        return bool(jobs == JOBS and newest > now)

    wait_until(caught_up, WAIT_TIMEOUT, "every job to have caught up")
    assert world.cluster.sql(GAPS) == [(0,)]
    wait_until(
        lambda: world.cluster.sql(UNENDED, now) == [(0,)],
        WAIT_TIMEOUT + JOBS * SECONDS / RELEASE_RATE,
        "every run of before to end",
    )
    assert world.cluster.sql(FAILED) == [(0,)]
    return well
