"""The same no-op as schedd's worker runs it: a handler on its loop."""

from __future__ import annotations

from bench.peers.programs.appending import append
from schedclient import Context, handler


@handler
async def noop(number: int, _ctx: Context) -> None:
    """Append one line."""
    append(number)
