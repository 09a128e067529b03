"""Real etcd for tests: clusters of one or three processes that may be killed, paused, restarted.

    with EtcdCluster(3) as etcd:
        access = Access(etcd.endpoints)
        etcd.leader().kill()

Each member logs to `<folder>/<name>.log`. Nothing is synced to disk (the data outlive a killed
process, not a killed machine). Whatever ends the session, even SIGKILL, ends the members and
removes a folder of our own: a guard process waits for our end of a pipe to close.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from schedctl.dev.servers import binaries, processes
from schedctl.dev.servers.etcd import fetch
from schedctl.dev.servers.processes import DevProcess, end, spawn, tail
from support.wait import wait_until

READY_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files: an authority, and what it signed for 127.0.0.1 as server and as client."""

    ca: Path
    cert: Path
    key: Path


@dataclass(slots=True)
class EtcdMember:
    """An etcd process. `endpoint`: `host:port` for clients."""

    name: str
    endpoint: str
    argv: Sequence[str]
    folder: Path
    health: str
    _process: DevProcess | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        return self.process.pid

    @property
    def process(self) -> DevProcess:
        """The process that runs, or ran last."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process

    @property
    def log(self) -> Path:
        """Everything it ever said."""
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it on its data; returns before it serves (`wait_ready`)."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        self._process = spawn(self.argv, log=self.log, cwd=self.folder, env=environ)
        with (self.folder / "pids").open("a") as pids:
            pids.write(f"{self.pid}\n")

    def kill(self) -> None:
        """SIGKILL; returns when it has gone."""
        end([self.process])

    def pause(self) -> None:
        """SIGSTOP: its connections stand, and nothing answers."""
        self.process.send(signal.SIGSTOP)
        wait_until(self.process.paused, 5.0, f"{self.name} to stand still")

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs, start it again on the same data and ports, wait until it serves."""
        self.kill()
        self.start()
        self.wait_ready()

    def wait_ready(self, timeout: float = READY_WITHIN) -> None:
        """Wait until it serves, which takes a majority of the cluster."""

        def healthy() -> bool:
            if not self.process.alive():
                raise AssertionError(f"{self.name} has ended; its log says\n{tail(self.log)}")
            answer = fetch(f"{self.health}/health")
            return answer is not None and answer.status == 200

        wait_until(healthy, timeout, f"{self.name} to serve")

    def leads(self) -> bool:
        """Whether it believes to be etcd's leader."""
        answer = fetch(f"{self.health}/metrics") if self.process.alive() else None
        return answer is not None and b"etcd_server_is_leader 1" in answer.body


class EtcdCluster:
    """`size` real etcd processes on free loopback ports. A context manager: starts, ends.

    `folder`: where data and logs go; None: a temporary one, removed afterwards.
    `tls`: clients have to speak TLS and show a certificate of this authority.
    `flags`: more of etcd's own flags, such as `("--election-timeout", "4000")`.
    """

    def __init__(
        self,
        size: int = 1,
        folder: Path | None = None,
        *,
        tls: Certificates | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self._owned = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="schedd-etcd-"))
        self.tls = tls
        self.members = self._describe(size, flags)
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`host:port` of every member."""
        return tuple(member.endpoint for member in self.members)

    def member(self, endpoint: str) -> EtcdMember:
        """The member that serves this endpoint."""
        return next(member for member in self.members if member.endpoint == endpoint)

    def leader(self) -> EtcdMember:
        """The member that leads now; waits for one."""
        seen = wait_until(
            lambda: [member for member in self.members if member.leads()],
            READY_WITHIN,
            "etcd to have a leader",
        )
        return seen[0]

    def ctl(self, *arguments: str) -> str:
        """Run etcdctl against all members; what it prints."""
        program = _find_etcdctl()
        done = subprocess.run(
            [program, "--endpoints", ",".join(self.endpoints), *self._ctl_tls(), *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=30,
        )
        if done.returncode:
            raise AssertionError(f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def restore(self, snapshot: Path) -> None:
        """Lose all data and come back as of a snapshot (`ctl("snapshot", "save", …)`) under the
        same cluster id, as a restore without another cluster token does.
        """
        for member in self.members:
            member.kill()
            shutil.rmtree(self.folder / member.name)
            kept = ("--name", "--initial-cluster", "--initial-advertise-peer-urls", "--data-dir")
            words = list(member.argv)
            flags = [word for flag in kept for word in (flag, words[words.index(flag) + 1])]
            self.ctl("snapshot", "restore", os.fspath(snapshot), *flags)
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_ready()

    def start(self) -> Self:
        """Start all members and wait until all serve."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "pids").write_text("")
        self._guard = _start_guard(self.folder, remove=self._owned)
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_ready()
        return self

    def stop(self) -> None:
        """End all members at once; nothing of them is left."""
        end([member.process for member in self.members])
        (self.folder / "pids").write_text("")
        if self._guard is not None:
            self._guard.communicate(timeout=30)
            self._guard = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── what a member is started with ────────────────────────────────────────────────────────

    def _describe(self, size: int, flags: Sequence[str]) -> list[EtcdMember]:
        reserved = processes.reserve(3 * size)
        names = [f"etcd{at}" for at in range(size)]
        clients, peers, metrics = (reserved[at::3] for at in range(3))
        initial = ",".join(
            f"{name}=http://{processes.address(peer)}"
            for name, peer in zip(names, peers, strict=True)
        )
        return [
            EtcdMember(
                name=name,
                endpoint=processes.address(client),
                argv=self._argv(name, client, peer, metric, initial, flags),
                folder=self.folder,
                health=f"http://{processes.address(metric)}",
            )
            for name, client, peer, metric in zip(names, clients, peers, metrics, strict=True)
        ]

    def _argv(
        self, name: str, client: int, peer: int, metric: int, initial: str, flags: Sequence[str]
    ) -> list[str]:
        clients = f"{'http' if self.tls is None else 'https'}://{processes.address(client)}"
        peers = f"http://{processes.address(peer)}"
        return [
            os.fspath(binaries.find_etcd()),
            *("--name", name),
            *("--data-dir", os.fspath(self.folder / name)),
            *("--listen-client-urls", clients),
            *("--advertise-client-urls", clients),
            *("--listen-peer-urls", peers),
            *("--initial-advertise-peer-urls", peers),
            *("--initial-cluster", initial),
            *("--listen-metrics-urls", f"http://{processes.address(metric)}"),
            *("--log-level", "warn"),
            "--unsafe-no-fsync",
            *self._server_tls(),
            *flags,
        ]

    def _server_tls(self) -> tuple[str, ...]:
        if self.tls is None:
            return ()
        return (
            *("--cert-file", os.fspath(self.tls.cert)),
            *("--key-file", os.fspath(self.tls.key)),
            *("--trusted-ca-file", os.fspath(self.tls.ca)),
            "--client-cert-auth",
        )

    def _ctl_tls(self) -> tuple[str, ...]:
        if self.tls is None:
            return ()
        return (
            *("--cacert", os.fspath(self.tls.ca)),
            *("--cert", os.fspath(self.tls.cert)),
            *("--key", os.fspath(self.tls.key)),
        )


def _find_etcdctl() -> str:
    beside = binaries.find_etcd().with_name("etcdctl")
    found = os.fspath(beside) if beside.exists() else shutil.which("etcdctl")
    if found is None:
        raise AssertionError("etcdctl was not found beside etcd, nor on PATH")
    return found


_GUARD = """
read _
while read pid; do kill -9 "$pid"; done < "$1/pids"
if [ "$2" = remove ]; then rm -rf "$1"; fi
"""


def _start_guard(folder: Path, *, remove: bool) -> subprocess.Popen[bytes]:
    """Have what is left of the members ended when our end of a pipe closes."""
    return subprocess.Popen(
        ["sh", "-c", _GUARD, "guard", folder, "remove" if remove else "keep"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
