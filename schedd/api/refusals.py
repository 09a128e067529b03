"""Refused changes of the cluster are audited too: who wanted what, and why it wasn't done."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from schedd.api.errors import CallError, OutcomeUnclear
from schedd.api.services import Caller, Services


@asynccontextmanager
async def audited(
    services: Services, caller: Caller, action: str, object_: str, request_id: str
) -> AsyncIterator[None]:
    """Write down what is raised inside: as refused, or as unknown where it may have happened."""
    try:
        yield
    except CallError as error:
        outcome = "unknown" if isinstance(error, OutcomeUnclear) else "refused"
        entry = caller.audit(action, object_, request_id)
        await services.store.audit(replace(entry, outcome=outcome, reason=error.reason))
        raise
