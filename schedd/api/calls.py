"""The table of user calls: every method of the protos, with its function.

`rpc/` serves it over gRPC and `web/` over HTTP, by the rules in the protos.

Invariants
- Every method is in the table, and nothing else is: a test checks it.
- A function sees only requests that are within their bounds (`request_bounds`) and whose caller has
  the role (`policy`).
- Every call ends within its deadline, whatever PostgreSQL does (`deadlines`).
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from schedd.api import calendars, dead_letters, deadlines, pools
from schedd.api.auth import access_tokens
from schedd.api.auth.policy import authorize_request
from schedd.api.cluster import cluster, cluster_changes, doctor
from schedd.api.errors import dependency_error
from schedd.api.jobs import backfills, create, explain, jobs
from schedd.api.request_bounds import SERVICES, check_wellformed
from schedd.api.runs import runs, submit, watch
from schedd.api.services import Caller, Services
from schedkit.errors import DatabaseUnavailable

Unary: TypeAlias = Callable[[Services, Caller, Any], Awaitable[Message]]
Streaming: TypeAlias = Callable[[Services, Caller, Any], AsyncGenerator[Message, None]]


READS: Final = ("Get", "List", "Explain")
"""Prefixes of methods that change nothing."""

TRIALS: Final = ("dry_run", "validate_only")
"""Fields that make the other methods change nothing."""


def _guarded(method: str, call: Unary) -> Unary:
    """Return a call with its checks and its deadline."""
    is_batch = ".Batch" in method
    reads = method.rpartition(".")[2].startswith(READS)

    @wraps(call)
    async def guarded(services: Services, caller: Caller, request: Any) -> Message:
        if not is_batch:
            check_wellformed(request)
        if reads or any(getattr(request, field, False) for field in TRIALS):
            async with deadlines.limit_read(caller.deadline, services.database_answered_at):
                await authorize_request(services, caller.who, method, request)
                return await call(services, caller, request)
        waits = deadlines.WAITS if caller.deadline is None else caller.deadline
        async with deadlines.changed(waits):
            try:
                await authorize_request(services, caller.who, method, request)
                return await call(services, replace(caller, deadline=waits), request)
            except DatabaseUnavailable as error:
                raise dependency_error(error, change=True) from error

    return guarded


def _checked_stream(method: str, call: Streaming) -> Streaming:
    @wraps(call)
    async def checked(
        services: Services, caller: Caller, request: Any
    ) -> AsyncGenerator[Message, None]:
        check_wellformed(request)
        await authorize_request(services, caller.who, method, request)
        authentication, who = services.authentication, caller.who
        async with (
            aclosing(call(services, caller, request)) as answers,
            aclosing(authentication.readers.until_over(who, answers)) as read,
        ):
            async for answer in read:
                await authentication.check(who)
                yield answer

    return checked


_MODULES: Final = (
    *(create, jobs, backfills, explain, pools, calendars, access_tokens),
    *(submit, runs, dead_letters, watch),
    *(cluster, cluster_changes, doctor),
)


def methods() -> list[MethodDescriptor]:
    return [method for service in SERVICES for method in service.methods]


def _functions(*, streaming: bool) -> dict[str, Any]:
    """Return full name of a method → its function: `create_job` for CreateJob."""
    defined = {name: one for module in _MODULES for name, one in vars(module).items()}
    named = {
        method.full_name: re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        for method in methods()
        if method.server_streaming == streaming
    }
    return {method: defined[name] for method, name in named.items() if name in defined}


UNARY: Final[dict[str, Unary]] = {
    name: _guarded(name, call) for name, call in _functions(streaming=False).items()
}
"""Calls with one answer."""

BATCHES: Final = frozenset(name for name in UNARY if ".Batch" in name)
"""Batch calls. Each of their requests is checked separately."""

STREAMING: Final = {
    name: _checked_stream(name, call) for name, call in _functions(streaming=True).items()
}
"""Calls with a stream of answers."""


Answer = TypeVar("Answer", bound=Message)

_CALL_OF: Final = {method.input_type.full_name: method.full_name for method in methods()}
"""Type of a request → its call."""


async def make_call(
    services: Services, caller: Caller, request: Message, answer: type[Answer]
) -> Answer:
    """Make the call of a request, which has one answer of this type."""
    found = await UNARY[_CALL_OF[request.DESCRIPTOR.full_name]](services, caller, request)
    assert isinstance(found, answer)
    return found
