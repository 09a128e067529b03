"""Explain a cron expression, for the call and for the dashboard."""

from datetime import UTC, datetime
from functools import partial

from schedd.api import paging
from schedd.api.budgeted_calls import compute
from schedd.api.errors import FieldViolation, InvalidArgumentError
from schedd.api.jobs.stored_jobs import namespace_of
from schedd.api.services import Caller, Services
from schedd.core.schedule.cron import EPOCH, CronError
from schedd.core.schedule.cron import explain as explained
from schedd.runtime import job_codec
from schedproto.v1 import job_service_pb2 as wire


async def explain_cron(
    services: Services, caller: Caller, request: wire.ExplainCronRequest
) -> wire.ExplainCronResponse:
    """Describe an expression, with its next times and notes. Raises InvalidArgumentError."""
    after = services.clock.now()
    if request.HasField("after"):
        after = max(job_codec.instant(request.after), EPOCH)  # a schedule has no earlier past
    return await compute(caller, partial(explanation, request, after))


def explanation(request: wire.ExplainCronRequest, after: datetime) -> wire.ExplainCronResponse:
    """Return the answer, with times later than `after`. Raises InvalidArgumentError. Pure."""
    namespace = namespace_of(request.namespace)
    seed = f"{namespace}/{request.job}" if request.job else ""
    count = paging.coming(request.count)
    try:
        found = explained(
            request.expression, request.time_zone or "UTC", after=after, count=count, seed=seed
        )
    except CronError as error:
        raise _wrong(error) from error
    answer = wire.ExplainCronResponse(
        expression=found.expression,
        time_zone=found.time_zone,
        description=found.description,
        warnings=found.notes,
    )
    for at in found.instants:
        answer.instants.add().FromDatetime(at.astimezone(UTC))
    return answer


def _wrong(error: CronError) -> InvalidArgumentError:
    """Return the error, with the request's field. The text names the part of the expression."""
    whole = error.field in ("expression", "time_zone")
    violation = (
        FieldViolation(error.field, error.problem)
        if whole
        else FieldViolation("expression", f"{error.field}: {error.problem}")
    )
    return InvalidArgumentError(
        f"{error.field}: {error.problem}",
        reason="WRONG_EXPRESSION",
        remedy=error.hint or "for example 30 9 * * MON-FRI",
        violations=[violation],
    )
