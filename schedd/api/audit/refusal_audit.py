"""Audit rejected changes of the cluster: the caller, the requested change, and the reason."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from schedd.api.errors import CallError, OutcomeUnknownError
from schedd.api.services import Caller, Services, compact
from schedkit.errors import Unavailable

WRITE_WITHIN: Final = 2.0
"""Seconds to write the audit line after the caller left or a dependency failed."""


@asynccontextmanager
async def audited(
    services: Services,
    caller: Caller,
    action: str,
    object_: str,
    request_id: str,
    requested: Mapping[str, object] | None = None,
) -> AsyncIterator[None]:
    """Write an audit line for an error that is raised inside. Its outcome is "refused", or
    "unknown" if the change may have been made: etcd didn't answer, or the caller left. `requested`,
    the state that the caller asked for, is the line's "after".
    """

    async def write(outcome: str, reason: str) -> None:
        entry = caller.audit(action, object_, request_id)
        if requested is not None:
            entry = replace(entry, after=compact(requested))
        await services.store.audit(replace(entry, outcome=outcome, reason=reason))

    async def write_unknown(reason: str) -> None:
        """The caller gets the original error, also if this line can't be written."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(WRITE_WITHIN):
                await write("unknown", reason)

    try:
        yield
    except OutcomeUnknownError as error:
        await write_unknown(error.reason)
        raise
    except CallError as error:
        await write("refused", error.reason)
        raise
    except (Unavailable, asyncio.CancelledError) as error:
        await write_unknown("UNAVAILABLE" if isinstance(error, Unavailable) else "GONE")
        raise
