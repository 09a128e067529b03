"""`schedctl dev` with etcd and PostgreSQL alone: real processes, killed and brought back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg2
import pytest

from schedctl.dev.servers import binaries, postgres
from schedctl.dev.servers.etcd import fetch
from schedctl.dev.servers.postgres import open_to_all
from schedctl.dev.servers.processes import find, living_in
from support.cluster import DevCluster, dev_cluster
from support.postgres import memory
from support.repository import ROOT
from support.wait import wait_until


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where the files of a server take a sixth of the CPU time that they take on a disk."""
    with TemporaryDirectory(prefix="schedd-dev-", dir=memory()) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def module_stores(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    with dev_cluster(request.session, members=0, workers=0) as cluster:
        yield cluster


@pytest.fixture
def stores(module_stores: DevCluster) -> DevCluster:
    """Both stores run, also if the test before stopped them."""
    if not all(pid and find(pid) for pid in pids(module_stores)):
        module_stores.up()
    return module_stores


def pids(cluster: DevCluster) -> tuple[int, int]:
    record = cluster.record
    return record["etcd"][0]["pid"], record["postgres"]["pid"]


def leftovers(directory: Path) -> list[str]:
    """Command lines that name the folder, and processes that stand in its PostgreSQL's data."""
    found = [f"backend {process.pid}" for process in living_in(directory / "postgres")]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{directory}/" in command and find(int(entry.name)):
            found.append(command)
    return found


def segments() -> set[str]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines}


def test_both_stores_answer_where_the_record_says(stores: DevCluster) -> None:
    record = stores.record
    health = fetch(f"http://{record['etcd'][0]['endpoint']}/health")
    assert health is not None
    assert json.loads(health.body)["health"] == "true"
    assert stores.sql("select current_user, current_database()") == [("schedd", "schedd")]
    assert stores.sql("show fsync") == [("on",)]


def test_the_recorded_pid_is_the_postmaster_itself(stores: DevCluster) -> None:
    _, pid = pids(stores)
    lock = (stores.directory / "postgres" / "postmaster.pid").read_text()
    assert int(lock.splitlines()[0]) == pid
    assert Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"


def test_the_daemons_role_has_its_limits_in_every_session(stores: DevCluster) -> None:
    for setting, value in postgres.ROLE_LIMITS.items():
        assert stores.sql(f"show {setting}") == [(value,)]


def test_up_again_changes_nothing_that_runs(stores: DevCluster) -> None:
    before = stores.record
    stores.up()
    assert stores.record == before


def test_up_again_starts_killed_processes_on_the_same_address_with_their_data(
    stores: DevCluster,
) -> None:
    stores.sql("create table kept as select 1 as one")
    before = stores.record
    stores.kill("postgres")
    with pytest.raises(psycopg2.OperationalError):
        stores.sql("select 1")
    stores.up()
    assert stores.record["etcd"] == before["etcd"]
    assert stores.record["postgres"]["dsn"] == before["postgres"]["dsn"]
    assert stores.record["postgres"]["pid"] != before["postgres"]["pid"]
    assert stores.sql("select one from kept") == [(1,)]


def test_down_leaves_no_process_and_keeps_the_data(stores: DevCluster) -> None:
    stores.sql("create table remained as select 1 as one")
    stores.down()
    assert leftovers(stores.directory) == []
    assert pids(stores) == (None, None)
    stores.up()
    assert stores.sql("select one from remained") == [(1,)]


def test_down_ends_paused_servers_too(stores: DevCluster) -> None:
    stores.pause("postgres")
    stores.pause("etcd")
    stores.down()
    assert leftovers(stores.directory) == []


def test_down_after_both_were_killed_leaves_no_process_and_no_shared_memory(
    stores: DevCluster,
) -> None:
    ours = (stores.directory / "postgres" / "postmaster.pid").read_text().splitlines()[6].split()[1]
    assert ours in segments()
    # A paused backend doesn't see that its postmaster dies, and would live on for ever.
    session = psycopg2.connect(stores.dsn)
    backend = find(session.info.backend_pid)
    assert backend is not None
    backend.send(signal.SIGSTOP)
    stores.kill("postgres")
    stores.kill("etcd")
    assert backend.alive()
    stores.down()
    assert leftovers(stores.directory) == []
    assert ours not in segments()
    assert not backend.alive()
    session.close()


def test_reset_removes_all_that_it_made_and_nothing_else(request: pytest.FixtureRequest) -> None:
    with dev_cluster(request.session, members=0, workers=0) as cluster:
        foreign = cluster.directory / "notes.txt"
        foreign.write_text("mine")
        assert cluster.dev("reset").returncode == 0
        assert [path.name for path in cluster.directory.iterdir()] == ["notes.txt"]
        assert leftovers(cluster.directory) == []


def test_down_and_reset_of_nothing_are_no_errors(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "never")
    for command in ("down", "reset"):
        assert cluster.dev(command).returncode == 0
    assert not cluster.directory.exists()


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    refused = DevCluster(tmp_path).dev("up", "--members", "0", "--detach")
    assert refused.returncode == 5
    assert "schedctl dev didn't create it" in refused.stderr
    assert list((tmp_path / "postgres").iterdir()) == []


def test_a_folder_with_spaces_under_a_closed_one_works(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    cluster = DevCluster(tmp_path / "a cluster's folder", members=0, workers=0)
    try:
        cluster.up()
        assert cluster.sql("select 1") == [(1,)]
    finally:
        cluster.down()


def closed_programs(folder: Path) -> Path:
    """Return a folder with PostgreSQL that only its owner may enter."""
    folder.mkdir(mode=0o700)
    real = binaries.find_postgres()
    (folder / "initdb").write_text(f'#!/bin/sh\nexec "{real.initdb}" "$@"\n')
    (folder / "initdb").chmod(0o755)
    (folder / "postgres").symlink_to(real.postgres)
    return folder


@contextmanager
def open_programs() -> Iterator[Path]:
    """A folder with PostgreSQL that every user may enter: a copy, if only its owner may."""
    real = binaries.find_postgres().initdb.parent
    if open_to_all(real):
        yield real
        return
    with TemporaryDirectory(prefix="schedd-pg-") as folder:
        Path(folder).chmod(0o755)
        package = real.parents[1]  # a wheel's: it has its libraries beside itself
        for part in (real.parent, package.with_name(f"{package.name}.libs")):
            shutil.copytree(part, Path(folder) / part.relative_to(package.parent))
        yield Path(folder) / real.relative_to(package.parent)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become another user")
def test_root_without_namespaces_runs_postgresql_as_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    forbidden = tmp_path / "bin" / "unshare"
    forbidden.parent.mkdir()
    forbidden.write_text("#!/bin/sh\nexit 1\n")
    forbidden.chmod(0o755)
    cluster = DevCluster(tmp_path / "d", members=0, workers=0)

    def use(programs: Path) -> None:
        cluster.env["PATH"] = f"{forbidden.parent}:{programs}:{os.environ['PATH']}"

    try:
        use(closed_programs(tmp_path / "closed"))
        refused = cluster.dev("up", "--detach", "--members", "0")
        assert (refused.returncode, "only root can read" in refused.stderr) == (5, True)
        with open_programs() as programs:
            use(programs)
            cluster.up()
            assert (cluster.directory / "postgres").owner() == "nobody"
            cluster.kill("postgres")
            cluster.up()
            assert cluster.sql("select 1") == [(1,)]
            cluster.down()
    finally:
        cluster.down()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
@pytest.mark.skipif(not Path("/usr/bin/python3.11").exists(), reason="needs a Python all may run")
@pytest.mark.parametrize("user", [65534, 54321], ids=["named", "nameless"])
def test_an_ordinary_user_has_a_cluster_too(user: int) -> None:
    home = (memory() or Path("/tmp")) / f"schedd-user-{user}-{os.getpid()}"
    home.mkdir()
    os.chown(home, user, user)
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    ours = ROOT
    paths = [path for path in sys.path if path.endswith("site-packages")]
    paths += map(str, (ours, ours / "client", ours / "proto"))
    if hidden := [path for path in paths if not open_to_all(Path(path))]:
        pytest.skip(f"others can't read {hidden[0]}: this checkout is for its owner alone")
    dev = [*become, "/usr/bin/python3.11", "-m", "schedctl.dev"]
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": ":".join(paths)}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*dev, *args], env=env, cwd=home, capture_output=True, text=True)

    try:
        done = run("up", "--members", "0", "--detach")
        assert done.returncode == 0, done.stderr
        cluster = DevCluster(home / ".local/share/schedd/dev", members=0, workers=0)
        assert cluster.sql("select 1") == [(1,)]
        assert run("down").returncode == 0
        assert leftovers(cluster.directory) == []
    finally:
        run("reset")
        shutil.rmtree(home)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_whole_foreground_cluster(tmp_path: Path, ending: signal.Signals) -> None:
    cluster = DevCluster(tmp_path / "d", members=0, workers=0)
    command = [sys.executable, "-P", "-m", "schedctl.dev", "up", "--dir", cluster.directory]
    with subprocess.Popen([*command, "--members", "0"], stderr=subprocess.PIPE, text=True) as shown:
        assert shown.stderr is not None
        lines = iter(shown.stderr.readline, "")
        assert any("Ctrl-C stops the cluster" in line for line in lines)
        cluster.kill("etcd")
        assert any("etcd ended" in line for line in lines), "a death is reported"
        shown.send_signal(ending)
        wait_until(lambda: shown.poll() is not None, 20, "the end of dev up")
        assert shown.returncode == 0
    assert leftovers(cluster.directory) == []


def test_an_invalid_setting_is_a_usage_error_and_starts_nothing(tmp_path: Path) -> None:
    refused = DevCluster(tmp_path / "d").dev("up", "--set", "schedd.name=x", "--detach")
    assert refused.returncode == 2
    assert "gives each process its own value" in refused.stderr
    assert leftovers(tmp_path / "d") == []


def test_a_process_that_ends_during_its_start_is_reported_with_its_log(tmp_path: Path) -> None:
    cluster = DevCluster(tmp_path / "d", members=0, workers=0, env={"ETCD_BIN": "/bin/sleep"})
    late = cluster.dev("up", "--members", "0", "--detach", "--timeout", "60")
    cluster.down()
    assert late.returncode == 5
    assert "error: etcd ended during the start: " in late.stderr
    assert "--timeout" not in late.stderr, "it has ended: to wait longer wouldn't help"
    assert "why: FAILED_PRECONDITION, ENDED\n" in late.stderr
    assert "invalid option" in late.stderr or "unrecognized option" in late.stderr, "its log"
    assert leftovers(cluster.directory) == []


def test_settings_that_are_not_checked_in_time_exit_7_too_and_nothing_was_started(
    tmp_path: Path,
) -> None:
    cluster = DevCluster(tmp_path / "d", members=1, workers=0)
    late = cluster.dev("up", "--set", "schedd.member_ttl=3s", "--detach", "--timeout", "0.01")
    assert late.returncode == 7, late.stderr
    assert "error: the check of m1's settings timed out: " in late.stderr
    assert "(waited 0.01 s" in late.stderr
    assert "allow more time: --timeout 60" in late.stderr
    assert leftovers(cluster.directory) == []


@pytest.mark.parametrize("stays", [[], ["--detach"]], ids=["foreground", "detached"])
def test_a_start_that_times_out_names_its_condition_and_the_option_to_wait_longer(
    tmp_path: Path, stays: list[str]
) -> None:
    silent = tmp_path / "etcd"
    silent.write_text("#!/bin/sh\nexec sleep 300\n")
    silent.chmod(0o755)
    env = {"ETCD_BIN": str(silent)}
    cluster = DevCluster(tmp_path / "d", members=0, workers=0, env=env)
    late = cluster.dev("up", "--members", "0", "--workers", "0", "--timeout", "1.5", *stays)
    cluster.down()
    assert late.returncode == 7, late.stderr
    assert re.search(
        r"error: (etcd|PostgreSQL) didn't become ready \(waited 1.5 s\)", late.stderr
    ), late.stderr
    assert "allow more time: --timeout 60" in late.stderr
    assert leftovers(cluster.directory) == []


def test_missing_workers_and_leaders_are_named(stores: DevCluster) -> None:
    paused = stores.dev("pause-worker", "w9")
    assert (paused.returncode, "worker 'w9' not found" in paused.stderr) == (5, True)
    assert stores.dev("kill-leader").returncode == 5
