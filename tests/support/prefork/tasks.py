"""A Celery application whose client makes a call at import: the prefork pool forks after that."""

from __future__ import annotations

import os

from celery import Celery

from schedclient import SyncClient

folder = os.environ["BROKER_FOLDER"]
client = SyncClient(os.environ["SCHEDCTL_ENDPOINTS"], timeout=10)
client.cluster.status()
parent = os.getpid()

app = Celery("tasks", broker="filesystem://", backend=f"file://{folder}/results")
app.conf.broker_transport_options = {
    "data_folder_in": f"{folder}/queue",
    "data_folder_out": f"{folder}/queue",
    "control_folder": f"{folder}/control",
}


@app.task
def submit(count: int) -> str:
    """Submit as many runs."""
    assert os.getpid() != parent
    return f"{len({client.submit(shell={'argv': ['true']}).run_id for _ in range(count)})} runs"
