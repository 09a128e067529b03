"""Handler of the herd's jobs: two lines in its worker's file, as `probe.sh` writes them."""

from __future__ import annotations

import asyncio
import json
import os
import time

from schedclient import Context, handler

LASTS = 3.0
"""Seconds of those that last."""


@handler("herd")
async def run(folder: str, ctx: Context) -> None:
    """Write its start and its end to the folder that is its payload."""
    began = time.time()
    _write(folder, ctx, _line("start", began, ctx), _line("end", time.time(), ctx))


@handler("herd_lasting")
async def run_for_a_while(folder: str, ctx: Context) -> None:
    """The same, with some seconds in between."""
    _write(folder, ctx, _line("start", time.time(), ctx))
    await asyncio.sleep(LASTS)
    _write(folder, ctx, _line("end", time.time(), ctx))


def _write(folder: str, ctx: Context, *lines: str) -> None:
    file = os.open(f"{folder}/{ctx.worker}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, "".join(lines).encode())  # at once: nothing of another's comes in between
    finally:
        os.close(file)


def _line(event: str, at: float, ctx: Context) -> str:
    line = {
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
    return json.dumps(line, separators=(",", ":")) + "\n"
