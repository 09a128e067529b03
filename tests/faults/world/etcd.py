"""etcd, one member a host: how it is started, found ready, asked who leads; `etcdctl` beside it.

Its own elections take 0.4 to 0.8 s (1 to 2 s by default), for they have to fit into what is left of
a lease of 3 s, the shortest there is, as its defaults fit into the default lease of 5 s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from faults.world.network import Host
from faults.world.service import Service
from schedctl.dev.servers import binaries

CLIENT, PEER, METRICS = 2379, 2380, 2381
QUOTA = 32 * 1024 * 1024
"""Bytes an etcd may keep: little, so that a nemesis can fill it."""


def services(hosts: Sequence[Host], work: Path, logs: Path) -> list[Service]:
    """The members of one new cluster, not yet started. Nothing is synced to disk."""
    initial = ",".join(f"{host.name}={_url(host, PEER)}" for host in hosts)
    return [service(host, work, logs, initial) for host in hosts]


def service(host: Host, work: Path, logs: Path, initial: str, *flags: str) -> Service:
    """Member of etcd; its data lie in `<work>/<name>`."""
    argv = [
        os.fspath(binaries.find_etcd()),
        *("--name", host.name),
        *("--data-dir", os.fspath(work / host.name)),
        *("--listen-client-urls", f"http://0.0.0.0:{CLIENT}"),
        *("--advertise-client-urls", _url(host, CLIENT)),
        *("--listen-peer-urls", f"http://0.0.0.0:{PEER}"),
        *("--initial-advertise-peer-urls", _url(host, PEER)),
        *("--initial-cluster", initial),
        *("--listen-metrics-urls", f"http://0.0.0.0:{METRICS}"),
        *("--heartbeat-interval", "50"),
        *("--election-timeout", "400"),
        *("--log-level", "warn"),
        *("--quota-backend-bytes", str(QUOTA)),
        "--unsafe-no-fsync",
        *flags,
    ]
    return Service(
        host.name,
        host,
        argv,
        logs / f"{host.name}.log",
        work,
        base=environment,
        http=f"{host.address}:{METRICS}",
        health="/health",
    )


def environment() -> dict[str, str]:
    """Ours, without what etcd would take for flags, in etcdctl's third API."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ETCD")}
    return {**kept, "ETCDCTL_API": "3"}


def leads(member: Service) -> bool:
    """Whether it believes to lead."""
    answer = member.get("/metrics") if member.alive() and not member.process.paused() else None
    return answer is not None and b"etcd_server_is_leader 1" in answer.body


def ctl(members: Sequence[Service], *words: str, check: bool = True) -> str:
    """Run etcdctl against these members; answers what it printed."""
    done = subprocess.run(
        [*ctl_argv(members), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"etcdctl {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def ctl_argv(members: Sequence[Service]) -> list[str]:
    """How etcdctl is called for these members."""
    endpoints = ",".join(f"{member.host.address}:{CLIENT}" for member in members)
    return [_etcdctl(), "--endpoints", endpoints]


def _etcdctl() -> str:
    beside = binaries.find_etcd().with_name("etcdctl")
    found = os.fspath(beside) if beside.exists() else shutil.which("etcdctl")
    if found is None:
        raise RuntimeError("etcdctl was found neither beside etcd nor on PATH")
    return found


def _url(host: Host, port: int) -> str:
    return f"http://{host.address}:{port}"
