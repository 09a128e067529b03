"""What a job of the herd does: two lines to the file of its worker, as `probe.sh` writes them."""

from __future__ import annotations

import json
import os
import time

from schedclient import Context, handler


@handler("herd")
async def run(folder: str, ctx: Context) -> None:
    """Write its start and its end to the folder that is its payload."""
    began = time.time()
    lines = (_line("start", began, ctx), _line("end", time.time(), ctx))
    file = os.open(f"{folder}/{ctx.worker}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, "".join(lines).encode())  # at once: nothing of another's comes in between
    finally:
        os.close(file)


def _line(event: str, at: float, ctx: Context) -> str:
    told = {
        "event": event,
        "run": ctx.run_id,
        "job": ctx.job,
        "nominal": ctx.scheduled_at.isoformat(),
        "at": at,
        "token": ctx.fencing_token,
        "attempt": ctx.attempt,
        "worker": ctx.worker,
        "pid": os.getpid(),
    }
    return json.dumps(told, separators=(",", ":")) + "\n"
