"""Python handlers of the demo, named in `python.yaml` and imported by each worker."""

import asyncio
import os
import shutil
from typing import TypedDict

from schedclient import Context, handler


class Disk(TypedDict):
    """The disk to measure."""

    path: str


@handler
def disk_usage(payload: Disk, ctx: Context) -> dict[str, int]:
    """Return how full a disk is, in percent. A plain function: it runs in a thread."""
    usage = shutil.disk_usage(payload["path"])
    return {"percent": round(100 * usage.used / usage.total), "attempt": ctx.attempt}


@handler
async def load_report(_payload: None, ctx: Context) -> str:
    """Return the load of this machine, read twice. An async function: it runs on the event loop."""
    before = os.getloadavg()[0]
    await asyncio.sleep(0.2)
    return f"{ctx.scheduled_at:%H:%M} UTC, load {before:.2f}, then {os.getloadavg()[0]:.2f}"
