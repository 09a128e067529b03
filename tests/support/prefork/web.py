"""A WSGI application whose client makes a call at import: `gunicorn --preload` forks after that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from schedclient import SyncClient

client = SyncClient(os.environ["SCHEDCTL_ENDPOINTS"], timeout=10)
client.cluster.status()
parent = os.getpid()


def app(environ: dict[str, str], start: Callable[..., object]) -> Iterable[bytes]:
    """Submit as many runs as the path says."""
    assert os.getpid() != parent
    count = int(environ["PATH_INFO"].strip("/"))
    runs = {client.submit(shell={"argv": ["true"]}).run_id for _ in range(count)}
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{len(runs)} runs".encode()]
