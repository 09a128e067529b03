"""Jobs of Celery: `celery worker` loads `app`. Run with N, the module enqueues N jobs."""

from __future__ import annotations

import json
import os
import sys

from celery import Celery

app = Celery("celery_jobs", broker=os.environ["PEERS_URL"], backend=os.environ["PEERS_URL"])
app.conf.update(json.loads(os.environ["PEERS_SETTINGS"]))


@app.task(name="noop")
def noop(number: int) -> None:
    """Append one line."""
    from appending import append

    append(number)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        noop.delay(number)
