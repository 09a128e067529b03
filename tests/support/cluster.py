"""A development cluster for tests: real processes, killed and paused by name.

    with dev_cluster(workers=1, overrides=["schedd.member_ttl=3s"]) as cluster:
        cluster.schedctl("submit", "--wait", "--", "true").check_returncode()
        cluster.kill(cluster.leader())
        wait_until(cluster.leader, 10, "a new leader")

Leaving the block ends everything. The folder (logs, configuration, data) is kept when the test
failed, and its path is printed. If pytest itself is killed, a guard process takes the cluster down.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from schedctl.dev.records import ClusterFolder
from schedctl.dev.servers import postgres
from schedctl.dev.servers.certificates import trust
from schedctl.dev.servers.etcd import HttpAnswer, fetch
from schedctl.dev.servers.processes import DevProcess, find
from schedd.etcd.access import EtcdAccess
from schedkit.net.channel import TLS
from support import fork_server
from support.postgres import copying_programs, is_in_memory, memory
from support.wait import wait_until

UP_SECONDS = 90.0
"""For all of it on a machine as busy as can be; seconds."""


class NotUpError(AssertionError):
    """A cluster didn't start; in the words of `dev up`."""


class DevCluster:
    """A cluster in a folder. Names of its parts: etcd, postgres, m1…, w1…"""

    def __init__(
        self,
        directory: Path,
        *,
        members: int = 3,
        workers: int = 2,
        slots: int = 16,
        overrides: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        tls: bool = False,
        postgres: str = "",
        forked: bool = True,
        copied: bool = True,
    ) -> None:
        """`postgres`: the DSN of a server to use; empty: the cluster starts its own.
        `forked`: its programs are forked by the fork server, without their imports.
        `copied`: its PostgreSQL is a copy of a migrated one. All copies have one cluster id.
        """
        self.forked = forked
        self.postgres = postgres
        self.directory = directory
        self.members = members
        self.workers = workers
        self.slots = slots
        self.overrides = tuple(overrides)
        # etcd with threads for one processor: a quarter less CPU time while idle
        self.env = {**os.environ, "GOMAXPROCS": "1", **(env or {})}
        if copied:
            programs = copying_programs().initdb.parent
            self.env["PATH"] = f"{programs}{os.pathsep}{self.env['PATH']}"
        self.tls = tls
        if tls:  # contexts of its own: `dev up --tls` writes one
            self.env["XDG_CONFIG_HOME"] = str(directory / "tls" / "contexts")
            self.env["SCHEDCTL_CONTEXT"] = f"dev-{directory.name}"

    def up(self) -> None:
        """Start it, or what is dead of it; returns when all of it is ready."""
        settings = [word for text in self.overrides for word in ("--set", text)]
        sizes = [
            "--timeout",
            UP_SECONDS,
            "--members",
            self.members,
            "--workers",
            self.workers,
            "--slots",
            self.slots,
        ]
        if self.tls:
            sizes.append("--tls")
        if self.postgres:
            sizes += ["--postgres", self.postgres]
        done = self.dev("up", "--detach", *map(str, sizes), *settings, timeout=UP_SECONDS + 20)
        if done.returncode != 0:
            raise NotUpError(f"dev up: exit {done.returncode}\n{done.stderr}")

    def down(self) -> None:
        """Stop it all; the data stays."""
        done = self.dev("down", timeout=120)
        assert done.returncode == 0, f"dev down: exit {done.returncode}\n{done.stderr}"

    def dev(
        self, command: str, *args: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """`schedctl dev COMMAND --dir … ARGS`."""
        return self._run(
            "schedctl.dev", command, "--dir", str(self.directory), *args, timeout=timeout
        )

    def schedctl(
        self, *args: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """`schedctl ARGS` against this cluster; its exit code is not judged here."""
        return self._run("schedctl", *args, stdin=stdin, timeout=timeout)

    def json(self, *args: str, timeout: float = 60) -> Any:
        """`schedctl ARGS -o json`, which must succeed; answers what it printed."""
        done = self.schedctl(*args, "-o", "json", timeout=timeout)
        assert done.returncode == 0, f"schedctl {' '.join(args)}: {done.returncode}\n{done.stderr}"
        return json.loads(done.stdout)

    @property
    def record(self) -> dict[str, Any]:
        """Return `cluster.json` as it is now."""
        content: dict[str, Any] = json.loads((self.directory / "cluster.json").read_text())
        return content

    @property
    def dsn(self) -> str:
        """The daemons' database."""
        return str(self.record["postgres"]["dsn"])

    @property
    def sql_port(self) -> int:
        """The port of PostgreSQL."""
        return urlsplit(self.dsn).port or 0

    @property
    def password(self) -> str | None:
        """The password of the users of PostgreSQL and etcd."""
        return urlsplit(self.dsn).password

    @property
    def admin_dsn(self) -> str:
        """The superuser's DSN, outside of the daemons' database."""
        role = postgres.ADMIN
        return postgres.dsn(self.sql_port, database="postgres", role=role, password=self.password)

    @property
    def etcd(self) -> EtcdAccess:
        """How to reach etcd as the daemons do."""
        entry = self.record["etcd"][0]
        return EtcdAccess((entry["endpoint"],), user=entry["user"], password=entry["password"])

    @property
    def endpoints(self) -> list[str]:
        """The gRPC addresses of all members."""
        return [member["grpc"] for member in self.record["members"]]

    @property
    def files(self) -> TLS | None:
        """The TLS files of a client, if the cluster has TLS."""
        folder = self.directory / "tls"
        return TLS(folder / "ca.pem", folder / "dev.pem", folder / "dev.key") if self.tls else None

    def entry(self, name: str) -> dict[str, Any]:
        """Return the entry of a part in `cluster.json`."""
        record = self.record
        parts = {part["name"]: part for part in (*record["members"], *record["workers"])}
        parts |= {"etcd": record["etcd"][0], "postgres": record["postgres"]}
        return dict(parts[name])

    def process(self, name: str) -> DevProcess:
        """The running process of a part."""
        process = find(self.entry(name)["pid"])
        assert process is not None, f"{name} does not run"
        return process

    def log(self, name: str) -> str:
        """All that a daemon has printed."""
        return Path(self.entry(name)["log"]).read_text(encoding="utf-8", errors="replace")

    def kill(self, name: str) -> None:
        """SIGKILL; returns when it is dead."""
        self.signal(name, signal.SIGKILL)

    def terminate(self, name: str, timeout: float = 60) -> None:
        """Send SIGTERM; return when the process has ended."""
        self.signal(name, signal.SIGTERM, timeout)

    def signal(self, name: str, number: signal.Signals, timeout: float = 10) -> None:
        """Send a signal that ends a part, and wait for its end."""
        process = self.process(name)
        process.send(number)
        wait_until(lambda: not process.alive(), timeout, f"the end of {name}")

    def pause(self, name: str) -> None:
        """SIGSTOP; returns when it stands. Of PostgreSQL this pauses the postmaster alone."""
        process = self.process(name)
        process.send(signal.SIGSTOP)
        wait_until(process.paused, 10, f"{name} to stand still")

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.process(name).send(signal.SIGCONT)

    def get(self, name: str, path: str) -> HttpAnswer | None:
        """GET from a daemon's HTTP port; None when it doesn't answer."""
        return self._fetch(self.entry(name)["http"], path, secure=self.tls and name[0] == "m")

    def leader(self) -> str | None:
        """The leader's name as a living member tells it; None when there is none."""
        for member in self.record["members"]:
            answer = self._fetch(member["http"], "/api/v1/cluster", secure=self.tls)
            if answer and answer.status == 200 and (name := json.loads(answer.body)["leader"]):
                return str(name)
        return None

    def _fetch(self, http: str, path: str, *, secure: bool) -> HttpAnswer | None:
        if not secure:
            return fetch(f"http://{http}{path}")
        folder = ClusterFolder(self.directory)
        state = folder.load()
        assert state is not None
        return fetch(f"https://{http}{path}", trust=trust(folder, state))

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement in the daemons' database; answers its rows, if it gives any."""
        with postgres.connect(self.dsn) as session, session.cursor() as cursor:
            cursor.execute(query, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def admin(self, statement: str) -> None:
        """Run one statement as the superuser of the server, outside of the daemons' database."""
        with postgres.connect(self.admin_dsn) as session, session.cursor() as cursor:
            cursor.execute(statement)

    def _run(
        self, module: str, *args: str, stdin: str | None = None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        env = dict(self.env)
        if self.members and module == "schedctl" and not self.tls:
            env["SCHEDCTL_ENDPOINTS"] = ",".join(self.endpoints)
        command = [sys.executable, "-P", "-m", module, *args]
        if self.forked:
            return fork_server.run(command, env=env, stdin=stdin or "", timeout=timeout)
        return subprocess.run(
            command, env=env, input=stdin or "", capture_output=True, text=True, timeout=timeout
        )


def importing(folder: Path) -> dict[str, str]:
    """The environment in which the modules of a folder can be imported, before all others."""
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    }


@contextmanager
def dev_cluster(
    session: pytest.Session | None = None,
    *,
    start: bool = True,
    on_disk: bool = False,
    **options: Any,
) -> Iterator[DevCluster]:
    """A cluster of its own in a new folder; `options` are those of `DevCluster`.

    A fixture passes `request.session`: it doesn't see its tests' exceptions, so the session's
    count shows a failure. With `start=False` the test calls `up` itself. The folder is in memory if
    there is space; with `on_disk`, it is where temporary files are, and never in memory.
    """
    if on_disk and is_in_memory(Path(tempfile.gettempdir())):
        raise OSError(f"{tempfile.gettempdir()} is in memory: set TMPDIR to a folder on a disk")
    directory = Path(tempfile.mkdtemp(prefix="schedd-dev-", dir=None if on_disk else memory()))
    cluster = DevCluster(directory, **options)
    failures = session.testsfailed if session else 0
    with _taken_down_if_we_die(cluster):
        try:
            if start:
                cluster.up()
            yield cluster
        except BaseException:
            cluster.down()
            _keep(directory)
            raise
        cluster.down()
    if session and session.testsfailed > failures:
        _keep(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _keep(directory: Path) -> None:
    """Keep the files of a failed test on the disk."""
    kept = shutil.copytree(directory, tempfile.mkdtemp(prefix="schedd-kept-"), dirs_exist_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
    print(f"the cluster's folder is kept: {kept}", file=sys.stderr)


@contextmanager
def _taken_down_if_we_die(cluster: DevCluster) -> Iterator[None]:
    down = [sys.executable, "-P", "-m", "schedctl.dev", "down", "--dir", str(cluster.directory)]
    guard = subprocess.Popen(
        # A line means that all is well; the end of the pipe without one, that we were killed.
        ["sh", "-c", 'read _ || exec "$@"', "guard", *down],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate(b"\n")
