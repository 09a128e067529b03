"""Commands: a program that the configuration allows, run once by this member.

Invariants
- A program that isn't named in `notifications.commands` isn't run: who writes jobs chooses among
  what the operator allowed, and gives its arguments, nothing more. No shell reads them.
- It sees none of this daemon's variables, and no descriptor but its three.
- Whatever ends its try ends it, and all that is left of its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from typing import Final

from schedd.core.notifications import Notification
from schedd.senders.message import body

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
KEPT: Final = 4096
"""Bytes of its standard error, its last ones; all is read."""


async def run(one: Notification, argv: Sequence[str], allowed: Sequence[str]) -> str:
    """Empty: it ended with 0."""
    if argv[0] not in allowed:
        return f"{argv[0]} isn't among notifications.commands of this member"
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=PIPE,
            cwd="/",
            env=ENVIRONMENT | _facts(one),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{argv[0]} can't be started: {error}"
    try:
        told, _ = await asyncio.gather(_last_words(process), _give(process, body(one)))
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if code == 0:
        return ""
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return f"{how}: {told}" if told else how


async def _give(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None, "it is a pipe"
    with contextlib.suppress(OSError):  # it needn't read
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _last_words(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None, "it is a pipe"
    kept = b""
    while chunk := await process.stderr.read(KEPT):
        kept = (kept + chunk)[-KEPT:]
    lines = kept.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _facts(one: Notification) -> dict[str, str]:
    return {
        "SCHEDD_NOTIFICATION_ID": str(one.notification_id),
        "SCHEDD_KIND": one.kind.value,
        "SCHEDD_NAMESPACE": one.namespace,
        "SCHEDD_JOB": one.job,
        "SCHEDD_RUN_ID": str(one.run_id),
        "SCHEDD_STATE": one.state,
    }
