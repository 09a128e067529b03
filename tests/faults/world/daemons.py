"""Members and workers, each by the real command with a TOML file on a host of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.world import etcd
from faults.world.network import Host
from faults.world.service import Service
from schedctl.dev.daemons import environment
from schedctl.files import to_toml
from support.version_before import HERE, Code

GRPC, HTTP = 7420, 7421
FAILPOINTS = "SCHEDD_FAILPOINTS"

MEMBER_POINTS = {
    "fire.in_transaction": "kill",
    "fire.before_commit": "stop",
    "fire.mid_batch": "kill",
    "fire.after_commit": "kill",
    "assign.before_commit": "kill",
    "assign.after_commit": "kill",
    "submit.before_commit": "kill",
    "submit.after_commit": "kill",
    "assign.after_push": "kill",
    "accept.before_commit": "kill",
    "accept.after_commit": "kill",
    "acknowledge.before": "kill",
    "part.before_commit": "kill",
    "give_back.before_commit": "kill",
    "rescue.before_commit": "kill",
    "take.before": "kill",
    "take.before_commit": "kill",
    "take.after_commit": "kill",
    "release.after_commit": "kill",
    "join.before_row": "kill",
    "lead.before_term": "kill",
    "lead.after_term": "kill",
    "fence.before_commit": "kill",
    "lead.before_map": "kill",
}
"""Failpoints of every member, and what happens at each when its ticket is there: a member dies, or
stands still with its transaction open. Without a ticket they do nothing."""

WORKER_POINTS = {
    "worker.before_start": "kill",
    "worker.before_exec": "kill",
    "worker.after_start": "kill",
    "worker.after_end": "kill",
    "worker.before_fsync": "kill",
    "worker.after_fsync": "kill",
}
"""The same for every worker."""


def address(host: Host, port: int = GRPC) -> str:
    """`host:port` of a daemon."""
    return f"{host.address}:{port}"


def member(
    host: Host,
    work: Path,
    logs: Path,
    *,
    etcds: Sequence[Host],
    dsn: str,
    ttl: float,
    name: str = "",
) -> Service:
    """Daemon `schedd`; `name` if it isn't the host's own."""
    config = {
        "name": name or host.name,
        "member_ttl": f"{ttl:g}s",
        "worker_ttl": f"{ttl:g}s",
        # Everywhere, for a proxy comes in by the back door.
        "listen": {
            "grpc": f"0.0.0.0:{GRPC}",
            "advertise_grpc": address(host),
            "http": address(host, HTTP),
            "insecure": True,
        },
        "etcd": {"endpoints": [address(each, etcd.CLIENT) for each in etcds]},
        "postgres": {"dsn": dsn},
    }
    return _daemon("schedd", host, work, logs, config)


def worker(
    host: Host,
    work: Path,
    logs: Path,
    *,
    members: Sequence[Host],
    slots: int,
    handlers: Sequence[str] = (),
    name: str = "",
) -> Service:
    """Daemon `workerd`; `name` if it isn't the host's own. `handlers`: modules of handlers."""
    config = {
        "name": name or host.name,
        "endpoints": [address(each) for each in members],
        "slots": slots,
        "handlers": [*handlers],
        "spool": os.fspath(work / host.name),
        "drain_timeout": "10s",
        "insecure": True,
        "listen": {"http": address(host, HTTP)},
    }
    return _daemon("workerd", host, work, logs, config)


def armed(points: Mapping[str, str], tickets: Path) -> dict[str, str]:
    """The variable that arms these failpoints, each with a ticket of its name in `tickets`."""
    each = (f"{name}={action},ticket={tickets / name}" for name, action in points.items())
    return {FAILPOINTS: "; ".join(each)}


def give(daemon: Service, code: Code) -> None:
    """From its next start on it is of this version."""
    daemon.argv = [os.fspath(code.python), *daemon.argv[1:]]
    if code is not HERE:
        daemon.environ.pop(FAILPOINTS, None)  # another version has others
    daemon.environ["PYTHONPATH"] = ""  # nothing else may say where code is


def migrate(member: Service) -> None:
    """Bring the schema up to date, as this member's configuration and version say."""
    command = [*member.host.enter(), *member.argv]
    command.insert(-2, "migrate")
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise RuntimeError(f"schedd migrate: {done.stderr}")


def _daemon(module: str, host: Host, work: Path, logs: Path, config: Mapping[str, Any]) -> Service:
    file = work / f"{host.name}.toml"
    file.write_text(to_toml(config))
    return Service(
        host.name,
        host,
        [sys.executable, "-P", "-m", module, "--config", os.fspath(file)],
        logs / f"{host.name}.log",
        work,
        base=environment,
        http=address(host, HTTP),
    )
