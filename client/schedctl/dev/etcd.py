"""One etcd server of our own: started, made ready. It is stopped by SIGTERM and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

from schedctl.dev.errors import Ended, NotReady
from schedctl.dev.http import fetch
from schedctl.dev.ports import address
from schedctl.dev.processes import Process, spawn, tail, wait_for


def start(program: Path, data: Path, *, client: int, peer: int, log: Path) -> Process:
    """Start a cluster of one in `data` (made if need be); returns before it answers."""
    peers = f"http://{address(peer)}"
    clients = f"http://{address(client)}"
    return spawn(
        [
            os.fspath(program),
            *("--name", "dev"),
            *("--data-dir", os.fspath(data)),
            *("--listen-client-urls", clients),
            *("--advertise-client-urls", clients),
            *("--listen-peer-urls", peers),
            *("--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"dev={peers}"),
            *("--auto-compaction-mode", "periodic"),
            *("--auto-compaction-retention", "1h"),
            *("--log-level", "warn"),
        ],
        log=log,
        cwd=data.parent,
        # etcd takes every ETCD_… variable for a flag.
        env={key: value for key, value in os.environ.items() if not key.startswith("ETCD_")},
    )


def wait_ready(server: Process, client: int, log: Path, timeout: float) -> None:
    """Wait until it serves (it has a leader: itself).

    Raises:
        Ended: it died. NotReady: `timeout` seconds passed. Both carry the log's tail.
    """
    if wait_for(lambda: _healthy(client) or not server.alive(), timeout) and server.alive():
        return
    if not server.alive():
        raise Ended("etcd", log)
    raise NotReady("etcd is not ready yet", f"look into {log}", evidence=tail(log))


def _healthy(client: int) -> bool:
    answer = fetch(f"http://{address(client)}/health")
    return answer is not None and answer.status == 200
