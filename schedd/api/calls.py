"""The table of user calls: every method of the protos, with its function.

`rpc/` serves it over gRPC and `web/` over HTTP, by the rules in the protos.

Invariants
- Every method is in the table, and nothing else is: a test checks it.
- A function sees only requests that are within their bounds (`request_check`) and whose caller has
  the role (`authorization`).
- Every call ends within its deadline, whatever PostgreSQL does (`deadlines`).
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from schedd.api import calendars, deadlines, pools
from schedd.api.auth import access_tokens
from schedd.api.auth.authorization import authorize_request
from schedd.api.cluster import cluster, cluster_pause, doctor, leader_transfer, rebalance
from schedd.api.dead_letters import dead_letters, redrives
from schedd.api.errors import dependency_error
from schedd.api.jobs import backfills, create, explain, jobs, pause
from schedd.api.request_bounds import check_wellformed
from schedd.api.runs import runs, submit, watch
from schedd.api.services import Caller, Services
from schedkit.errors import DatabaseUnavailable
from schedproto.v1 import (
    auth_service_pb2,
    calendar_service_pb2,
    cluster_service_pb2,
    job_service_pb2,
    pool_service_pb2,
    run_service_pb2,
)

Unary: TypeAlias = Callable[[Services, Caller, Any], Awaitable[Message]]
Streaming: TypeAlias = Callable[[Services, Caller, Any], AsyncGenerator[Message, None]]


READS: Final = ("Get", "List", "Explain")
"""Prefixes of methods that change nothing."""

TRIALS: Final = ("dry_run", "validate_only")
"""Fields that make the other methods change nothing."""


def _authorized(method: str, call: Unary) -> Unary:
    @wraps(call)
    async def authorized(services: Services, caller: Caller, request: Any) -> Message:
        await authorize_request(services, caller.who, method, request)
        return await call(services, caller, request)

    return authorized


def _in_time(method: str, call: Unary) -> Unary:
    reads = method.rpartition(".")[2].startswith(READS)

    @wraps(call)
    async def timely(services: Services, caller: Caller, request: Any) -> Message:
        if reads or any(getattr(request, field, False) for field in TRIALS):
            async with deadlines.limit_read(caller.deadline, services.database_answered_at):
                return await call(services, caller, request)
        waits = deadlines.WAITS if caller.deadline is None else caller.deadline
        async with deadlines.changed(waits):
            try:
                return await call(services, replace(caller, deadline=waits), request)
            except DatabaseUnavailable as error:
                raise dependency_error(error, change=True) from error

    return timely


def _checked(call: Unary) -> Unary:
    @wraps(call)
    async def checked(services: Services, caller: Caller, request: Any) -> Message:
        check_wellformed(request)
        return await call(services, caller, request)

    return checked


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
            aclosing(authentication.until_over(who, answers)) as read,
        ):
            async for answer in read:
                await authentication.check(who)
                yield answer

    return checked


SERVICES: Final[tuple[ServiceDescriptor, ...]] = (
    job_service_pb2.DESCRIPTOR.services_by_name["JobService"],
    run_service_pb2.DESCRIPTOR.services_by_name["RunService"],
    cluster_service_pb2.DESCRIPTOR.services_by_name["ClusterService"],
    calendar_service_pb2.DESCRIPTOR.services_by_name["CalendarService"],
    pool_service_pb2.DESCRIPTOR.services_by_name["PoolService"],
    auth_service_pb2.DESCRIPTOR.services_by_name["AuthService"],
)

_UNARY: Final[dict[str, Unary]] = {
    "schedd.v1.JobService.CreateJob": create.create_job,
    "schedd.v1.JobService.GetJob": jobs.get_job,
    "schedd.v1.JobService.ListJobs": jobs.list_jobs,
    "schedd.v1.JobService.UpdateJob": jobs.update_job,
    "schedd.v1.JobService.DeleteJob": jobs.delete_job,
    "schedd.v1.JobService.PauseJob": pause.pause_job,
    "schedd.v1.JobService.ResumeJob": pause.resume_job,
    "schedd.v1.JobService.TriggerJob": jobs.trigger_job,
    "schedd.v1.JobService.BackfillJob": backfills.backfill_job,
    "schedd.v1.JobService.GetBackfill": backfills.get_backfill,
    "schedd.v1.JobService.ListBackfills": backfills.list_backfills,
    "schedd.v1.JobService.CancelBackfill": backfills.cancel_backfill,
    "schedd.v1.JobService.ListNextInstants": jobs.list_next_instants,
    "schedd.v1.JobService.ExplainInstant": explain.explain_instant,
    "schedd.v1.JobService.ExplainCron": explain.explain_cron,
    "schedd.v1.PoolService.SetPool": pools.set_pool,
    "schedd.v1.PoolService.GetPool": pools.get_pool,
    "schedd.v1.PoolService.ListPools": pools.list_pools,
    "schedd.v1.PoolService.DeletePool": pools.delete_pool,
    "schedd.v1.PoolService.PausePool": pools.pause_pool,
    "schedd.v1.PoolService.ResumePool": pools.resume_pool,
    "schedd.v1.RunService.SubmitRun": submit.submit_run,
    "schedd.v1.RunService.GetRun": runs.get_run,
    "schedd.v1.RunService.ListRuns": runs.list_runs,
    "schedd.v1.RunService.CancelRun": runs.cancel_run,
    "schedd.v1.RunService.ListAttempts": runs.list_attempts,
    "schedd.v1.RunService.GetRunResult": runs.get_run_result,
    "schedd.v1.RunService.ExplainRun": runs.explain_run,
    "schedd.v1.RunService.RetryRun": runs.retry_run,
    "schedd.v1.RunService.ListDeadLetters": dead_letters.list_dead_letters,
    "schedd.v1.RunService.GetDeadLetter": dead_letters.get_dead_letter,
    "schedd.v1.RunService.ListDeadLetterGroups": dead_letters.list_dead_letter_groups,
    "schedd.v1.RunService.DiscardDeadLetters": dead_letters.discard_dead_letters,
    "schedd.v1.RunService.RedriveDeadLetters": redrives.redrive_dead_letters,
    "schedd.v1.RunService.GetRedrive": redrives.get_redrive,
    "schedd.v1.RunService.ListRedrives": redrives.list_redrives,
    "schedd.v1.RunService.StopRedrive": redrives.stop_redrive,
    "schedd.v1.RunService.ResumeRedrive": redrives.resume_redrive,
    "schedd.v1.ClusterService.GetCluster": cluster.get_cluster,
    "schedd.v1.ClusterService.ListMembers": cluster.list_members,
    "schedd.v1.ClusterService.ListShards": cluster.list_shards,
    "schedd.v1.ClusterService.TransferLeader": leader_transfer.transfer_leader,
    "schedd.v1.ClusterService.RebalanceCluster": rebalance.rebalance_cluster,
    "schedd.v1.ClusterService.CheckCluster": doctor.check_cluster,
    "schedd.v1.ClusterService.PauseCluster": cluster_pause.pause_cluster,
    "schedd.v1.ClusterService.ResumeCluster": cluster_pause.resume_cluster,
    "schedd.v1.ClusterService.ListWorkers": cluster.list_workers,
    "schedd.v1.ClusterService.GetWorker": cluster.get_worker,
    "schedd.v1.ClusterService.DrainWorker": cluster.drain_worker,
    "schedd.v1.ClusterService.UndrainWorker": cluster.undrain_worker,
    "schedd.v1.ClusterService.ListAudit": cluster.list_audit,
    "schedd.v1.CalendarService.ApplyCalendar": calendars.apply_calendar,
    "schedd.v1.CalendarService.GetCalendar": calendars.get_calendar,
    "schedd.v1.CalendarService.ListCalendars": calendars.list_calendars,
    "schedd.v1.CalendarService.DeleteCalendar": calendars.delete_calendar,
    "schedd.v1.AuthService.CreateToken": access_tokens.create_token,
    "schedd.v1.AuthService.ListTokens": access_tokens.list_tokens,
    "schedd.v1.AuthService.RevokeToken": access_tokens.revoke_token,
    "schedd.v1.AuthService.GetIdentity": access_tokens.get_identity,
}
BATCHES: Final[dict[str, Unary]] = {
    "schedd.v1.JobService.BatchCreateJobs": create.batch_create_jobs,
    "schedd.v1.RunService.BatchSubmitRuns": submit.batch_submit_runs,
}
"""Batch calls. Each of their requests is checked separately."""

_TIMELY: Final = {
    name: _in_time(name, _authorized(name, call)) for name, call in (_UNARY | BATCHES).items()
}
UNARY: Final = _TIMELY | {name: _checked(_TIMELY[name]) for name in _UNARY}
"""Calls with one answer."""

_STREAMING: Final[dict[str, Streaming]] = {
    "schedd.v1.RunService.WatchRuns": watch.watch_runs,
    "schedd.v1.RunService.ReadLogs": runs.read_logs,
    "schedd.v1.RunService.ReadResult": runs.read_result,
    "schedd.v1.RunService.WatchRedrive": watch.watch_redrive,
    "schedd.v1.JobService.WatchBackfill": watch.watch_backfill,
    "schedd.v1.ClusterService.WatchWorker": watch.watch_worker,
}
STREAMING: Final = {name: _checked_stream(name, call) for name, call in _STREAMING.items()}
"""Calls with a stream of answers."""


def methods() -> list[MethodDescriptor]:
    return [method for service in SERVICES for method in service.methods]
