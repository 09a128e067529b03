"""Refused changes of the cluster are audited too: who wanted what, and why it wasn't done."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from schedd.api.errors import CallError, OutcomeUnclear
from schedd.api.services import Caller, Services, compact
from schedkit.errors import Unavailable

GONE_WITHIN: Final = 2.0
"""Seconds to write what may have happened: a caller has gone, or the world was away."""


@asynccontextmanager
async def audited(
    services: Services,
    caller: Caller,
    action: str,
    object_: str,
    request_id: str,
    wished: Mapping[str, object] | None = None,
) -> AsyncIterator[None]:
    """Write down what is raised inside: as refused, or as unknown where it may have happened. That
    is so too when etcd gave no answer, and when the caller left before it had one. `wished`: what
    the caller would have the object be; it stands as the line's "after".
    """

    async def told(outcome: str, reason: str) -> None:
        entry = caller.audit(action, object_, request_id)
        if wished is not None:
            entry = replace(entry, after=compact(wished))
        await services.store.audit(replace(entry, outcome=outcome, reason=reason))

    async def tried(reason: str) -> None:
        """Of what may have happened, the caller is to hear that, whether this is written or not."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(GONE_WITHIN):
                await told("unknown", reason)

    try:
        yield
    except OutcomeUnclear as error:
        await tried(error.reason)
        raise
    except CallError as error:
        await told("refused", error.reason)
        raise
    except (Unavailable, asyncio.CancelledError) as error:
        await tried("UNAVAILABLE" if isinstance(error, Unavailable) else "GONE")
        raise
