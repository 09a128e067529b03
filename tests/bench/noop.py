"""What the benchmarks' runs do: nothing, as a handler on the worker's loop."""

from __future__ import annotations

from schedclient import Context, handler


@handler
async def noop(_payload: object, _ctx: Context) -> None:
    """Nothing."""
