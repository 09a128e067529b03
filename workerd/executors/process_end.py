"""Wait for the end of a program and its descendants.

Invariants
- A stop sends SIGTERM to the process group, and SIGKILL after `kill_after`; a kill skips SIGTERM.
- The child is closed in any case, also after a cancel.
"""

import asyncio

from schedkit import failpoints
from workerd.core.capture import Piece
from workerd.executors.base import AttemptStart, Stop
from workerd.executors.child_process import ChildProcess

AFTER_START = failpoints.awaited("worker.after_start", None)


async def stayed(
    child: ChildProcess, attempt: AttemptStart, stop: Stop
) -> tuple[int, tuple[Piece, ...]]:
    """Return the exit code, or minus the signal, and the kept output."""
    loop = asyncio.get_running_loop()
    killing: asyncio.TimerHandle | None = None

    def end(kill: bool) -> None:
        nonlocal killing
        if killing is not None:
            killing.cancel()
        if kill or attempt.kill_after <= 0:
            child.kill()
            return
        child.terminate()
        killing = loop.call_later(attempt.kill_after, child.kill)

    stop.listen(end)
    try:
        await AFTER_START()
        code = await child.wait_for_exit()
        stop.deafen()
        output = await child.output()
        await child.emptied(attempt.kill_after)
    finally:
        stop.deafen()
        if killing is not None:
            killing.cancel()
        child.close()
    return code, output
