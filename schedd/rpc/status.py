"""Encode errors for gRPC: status, message, and `google.rpc` details.

    grpc-status-details-bin = google.rpc.Status{code, message, details: [ErrorInfo, BadRequest?]}

ErrorInfo.reason is the reason code; its metadata holds the remedy.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from schedd.api.errors import CallError, FieldViolation

DOMAIN: Final = "schedd"
_CODES: Final = {code.name: code for code in grpc.StatusCode}


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    status: str,
    message: str,
    *,
    reason: str,
    remedy: str = "",
    violations: Iterable[FieldViolation] = (),
) -> NoReturn:
    """End the call with this status; never returns.

    Raises:
        CancelledError: the call has already ended: the caller disconnected, or gRPC's core rejected
            its message after the handler had started.
    """
    code = _CODES[status]
    metadata = {"remedy": remedy} if remedy else {}
    info = _packed(ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    found = Status(code=code.value[0], message=message, details=[info])
    wrong = [
        BadRequest.FieldViolation(field=one.field, description=one.problem) for one in violations
    ]
    if wrong:
        found.details.append(_packed(BadRequest(field_violations=wrong)))
    trailers = (("grpc-status-details-bin", found.SerializeToString()),)
    try:
        await context.abort(code, message, trailers)
    except grpc.aio.InternalError as ended:
        raise asyncio.CancelledError from ended
    except grpc.aio.AbortError as aborted:
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(partial(_forget_frames, aborted))
        raise
    raise AssertionError("unreachable: the abort of a call always raises an error")


def _forget_frames(aborted: grpc.aio.AbortError, _: object) -> None:
    """Break the cycle of a rejected call: gRPC keeps the error in the call's state, and frames of
    the error's traceback refer to that state. It is some 70 objects a call, which only a full
    garbage collection would free.
    """
    aborted.__traceback__ = aborted.__context__ = None


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: CallError) -> NoReturn:
    await abort(
        context,
        error.code,
        error.message,
        reason=error.reason,
        remedy=error.remedy,
        violations=error.violations,
    )


def _packed(message: Any) -> AnyMessage:
    found = AnyMessage()
    found.Pack(message)
    return found
