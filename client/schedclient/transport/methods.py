"""The calls of the API: request, answer, and whether a retry is safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import Message

from schedproto.v1 import auth_service_pb2 as auth
from schedproto.v1 import calendar_service_pb2 as calendars
from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import pool_service_pb2 as pools
from schedproto.v1 import run_service_pb2 as runs

Req_contra = TypeVar("Req_contra", bound=Message, contravariant=True)
Res_co = TypeVar("Res_co", bound=Message, covariant=True)


class Again(Enum):
    """When a call may be retried."""

    ALWAYS = "a read, or an idempotent change"
    UNSENT = "only if the first one surely wasn't sent"


READS: Final = ("Get", "List", "Explain", "Check", "Watch", "Read")
"""Prefixes of the calls that change nothing."""
TRIALS: Final = ("dry_run", "validate_only")
"""Fields that turn a change into a dry run."""


@dataclass(frozen=True)  # no slots: a parametrised Generic writes __orig_class__
class Method(Generic[Req_contra, Res_co]):
    """A call. `try_timeout`: seconds for one try while other endpoints remain."""

    path: str
    read: Callable[[bytes], Res_co]
    again: Again = Again.ALWAYS
    try_timeout: float = 5.0
    resumes: bool = False
    """Whether the reader of this stream resumes it if it breaks."""

    def reads(self, request: Message) -> bool:
        """Return whether this request changes nothing."""
        tried = any(getattr(request, field, False) for field in TRIALS)
        return tried or self.path.rpartition("/")[2].startswith(READS)

    def write(self, request: Req_contra) -> bytes:
        """Return the request's bytes."""
        return request.SerializeToString()


JOBS: Final = "/schedd.v1.JobService/"
RUNS: Final = "/schedd.v1.RunService/"
CLUSTER: Final = "/schedd.v1.ClusterService/"
CALENDARS: Final = "/schedd.v1.CalendarService/"
POOLS: Final = "/schedd.v1.PoolService/"
AUTH: Final = "/schedd.v1.AuthService/"
LONG_CALL: Final = 12.0
"""Timeout in seconds of calls that write many rows, or wait until a job starts no run any more (a
start_by is 5 s).
"""

TAKING_ON: Final = 60.0
"""Timeout in seconds of a change of a calendar, which updates every job that uses it."""

CREATE_JOB: Final = Method[jobs.CreateJobRequest, job_pb2.Job](
    JOBS + "CreateJob", job_pb2.Job.FromString
)
BATCH_CREATE_JOBS: Final = Method[jobs.BatchCreateJobsRequest, jobs.BatchCreateJobsResponse](
    JOBS + "BatchCreateJobs", jobs.BatchCreateJobsResponse.FromString, Again.ALWAYS, LONG_CALL
)
GET_JOB: Final = Method[jobs.GetJobRequest, job_pb2.Job](JOBS + "GetJob", job_pb2.Job.FromString)
LIST_JOBS: Final = Method[jobs.ListJobsRequest, jobs.ListJobsResponse](
    JOBS + "ListJobs", jobs.ListJobsResponse.FromString
)
UPDATE_JOB: Final = Method[jobs.UpdateJobRequest, job_pb2.Job](
    JOBS + "UpdateJob", job_pb2.Job.FromString, Again.UNSENT, LONG_CALL
)
DELETE_JOB: Final = Method[jobs.DeleteJobRequest, jobs.DeleteJobResponse](
    JOBS + "DeleteJob", jobs.DeleteJobResponse.FromString, Again.UNSENT, LONG_CALL
)
PAUSE_JOB: Final = Method[jobs.PauseJobRequest, job_pb2.Job](
    JOBS + "PauseJob", job_pb2.Job.FromString, Again.ALWAYS, LONG_CALL
)
RESUME_JOB: Final = Method[jobs.ResumeJobRequest, job_pb2.Job](
    JOBS + "ResumeJob", job_pb2.Job.FromString, Again.ALWAYS, LONG_CALL
)
TRIGGER_JOB: Final = Method[jobs.TriggerJobRequest, run_pb2.Run](
    JOBS + "TriggerJob", run_pb2.Run.FromString
)
BACKFILL_JOB: Final = Method[jobs.BackfillJobRequest, jobs.BackfillJobResponse](
    JOBS + "BackfillJob", jobs.BackfillJobResponse.FromString, Again.ALWAYS, LONG_CALL
)
GET_BACKFILL: Final = Method[jobs.GetBackfillRequest, jobs.Backfill](
    JOBS + "GetBackfill", jobs.Backfill.FromString
)
LIST_BACKFILLS: Final = Method[jobs.ListBackfillsRequest, jobs.ListBackfillsResponse](
    JOBS + "ListBackfills", jobs.ListBackfillsResponse.FromString
)
WATCH_BACKFILL: Final = Method[jobs.WatchBackfillRequest, jobs.Backfill](
    JOBS + "WatchBackfill", jobs.Backfill.FromString, resumes=True
)
CANCEL_BACKFILL: Final = Method[jobs.CancelBackfillRequest, jobs.Backfill](
    JOBS + "CancelBackfill", jobs.Backfill.FromString
)
LIST_NEXT: Final = Method[jobs.ListNextInstantsRequest, jobs.ListNextInstantsResponse](
    JOBS + "ListNextInstants", jobs.ListNextInstantsResponse.FromString
)
EXPLAIN_INSTANT: Final = Method[jobs.ExplainInstantRequest, jobs.ExplainInstantResponse](
    JOBS + "ExplainInstant", jobs.ExplainInstantResponse.FromString
)

SUBMIT_RUN: Final = Method[runs.SubmitRunRequest, run_pb2.Run](
    RUNS + "SubmitRun", run_pb2.Run.FromString
)
BATCH_SUBMIT_RUNS: Final = Method[runs.BatchSubmitRunsRequest, runs.BatchSubmitRunsResponse](
    RUNS + "BatchSubmitRuns", runs.BatchSubmitRunsResponse.FromString, Again.ALWAYS, LONG_CALL
)
GET_RUN: Final = Method[runs.GetRunRequest, run_pb2.Run](RUNS + "GetRun", run_pb2.Run.FromString)
LIST_RUNS: Final = Method[runs.ListRunsRequest, runs.ListRunsResponse](
    RUNS + "ListRuns", runs.ListRunsResponse.FromString
)
WATCH_RUNS: Final = Method[runs.WatchRunsRequest, runs.RunEvent](
    RUNS + "WatchRuns", runs.RunEvent.FromString, resumes=True
)
CANCEL_RUN: Final = Method[runs.CancelRunRequest, run_pb2.Run](
    RUNS + "CancelRun", run_pb2.Run.FromString
)
LIST_ATTEMPTS: Final = Method[runs.ListAttemptsRequest, runs.ListAttemptsResponse](
    RUNS + "ListAttempts", runs.ListAttemptsResponse.FromString
)
GET_RESULT: Final = Method[runs.GetRunResultRequest, run_pb2.RunResult](
    RUNS + "GetRunResult", run_pb2.RunResult.FromString
)
READ_RESULT: Final = Method[runs.ReadResultRequest, run_pb2.ResultPiece](
    RUNS + "ReadResult", run_pb2.ResultPiece.FromString
)
READ_LOGS: Final = Method[runs.ReadLogsRequest, run_pb2.LogPiece](
    RUNS + "ReadLogs", run_pb2.LogPiece.FromString, resumes=True
)
EXPLAIN_RUN: Final = Method[runs.ExplainRunRequest, runs.ExplainRunResponse](
    RUNS + "ExplainRun", runs.ExplainRunResponse.FromString
)
LIST_DEAD: Final = Method[runs.ListDeadLettersRequest, runs.ListDeadLettersResponse](
    RUNS + "ListDeadLetters", runs.ListDeadLettersResponse.FromString
)
RETRY_RUN: Final = Method[runs.RetryRunRequest, run_pb2.Run](
    RUNS + "RetryRun", run_pb2.Run.FromString
)
GET_DEAD: Final = Method[runs.GetDeadLetterRequest, run_pb2.DeadLetter](
    RUNS + "GetDeadLetter", run_pb2.DeadLetter.FromString
)
LIST_DEAD_GROUPS: Final = Method[
    runs.ListDeadLetterGroupsRequest, runs.ListDeadLetterGroupsResponse
](RUNS + "ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse.FromString)
DISCARD_DEAD: Final = Method[runs.DiscardDeadLettersRequest, runs.DiscardDeadLettersResponse](
    RUNS + "DiscardDeadLetters",
    runs.DiscardDeadLettersResponse.FromString,
    Again.UNSENT,  # a retry would return 0, and select what has failed since
    LONG_CALL,
)
REDRIVE_DEAD: Final = Method[runs.RedriveDeadLettersRequest, runs.RedriveDeadLettersResponse](
    RUNS + "RedriveDeadLetters", runs.RedriveDeadLettersResponse.FromString, Again.ALWAYS, LONG_CALL
)
GET_REDRIVE: Final = Method[runs.GetRedriveRequest, run_pb2.Redrive](
    RUNS + "GetRedrive", run_pb2.Redrive.FromString
)
LIST_REDRIVES: Final = Method[runs.ListRedrivesRequest, runs.ListRedrivesResponse](
    RUNS + "ListRedrives", runs.ListRedrivesResponse.FromString
)
WATCH_REDRIVE: Final = Method[runs.WatchRedriveRequest, run_pb2.Redrive](
    RUNS + "WatchRedrive", run_pb2.Redrive.FromString, resumes=True
)
STOP_REDRIVE: Final = Method[runs.StopRedriveRequest, run_pb2.Redrive](
    RUNS + "StopRedrive", run_pb2.Redrive.FromString
)
RESUME_REDRIVE: Final = Method[runs.ResumeRedriveRequest, run_pb2.Redrive](
    RUNS + "ResumeRedrive", run_pb2.Redrive.FromString
)

GET_CLUSTER: Final = Method[cluster.GetClusterRequest, cluster.Cluster](
    CLUSTER + "GetCluster", cluster.Cluster.FromString
)
LIST_MEMBERS: Final = Method[cluster.ListMembersRequest, cluster.ListMembersResponse](
    CLUSTER + "ListMembers", cluster.ListMembersResponse.FromString
)
LIST_SHARDS: Final = Method[cluster.ListShardsRequest, cluster.ListShardsResponse](
    CLUSTER + "ListShards", cluster.ListShardsResponse.FromString
)
TRANSFER_LEADER: Final = Method[cluster.TransferLeaderRequest, cluster.TransferLeaderResponse](
    CLUSTER + "TransferLeader", cluster.TransferLeaderResponse.FromString, Again.UNSENT, LONG_CALL
)
REBALANCE: Final = Method[cluster.RebalanceClusterRequest, cluster.RebalanceClusterResponse](
    CLUSTER + "RebalanceCluster",
    cluster.RebalanceClusterResponse.FromString,
    Again.UNSENT,  # each try is a line of the audit log
    LONG_CALL,
)
CHECK_CLUSTER: Final = Method[cluster.CheckClusterRequest, cluster.CheckClusterResponse](
    CLUSTER + "CheckCluster", cluster.CheckClusterResponse.FromString, Again.ALWAYS, LONG_CALL
)
PAUSE_CLUSTER: Final = Method[cluster.PauseClusterRequest, cluster.Cluster](
    CLUSTER + "PauseCluster", cluster.Cluster.FromString, Again.ALWAYS, LONG_CALL
)
RESUME_CLUSTER: Final = Method[cluster.ResumeClusterRequest, cluster.Cluster](
    CLUSTER + "ResumeCluster", cluster.Cluster.FromString, Again.ALWAYS, LONG_CALL
)
LIST_WORKERS: Final = Method[cluster.ListWorkersRequest, cluster.ListWorkersResponse](
    CLUSTER + "ListWorkers", cluster.ListWorkersResponse.FromString
)
GET_WORKER: Final = Method[cluster.GetWorkerRequest, cluster.Worker](
    CLUSTER + "GetWorker", cluster.Worker.FromString
)
WATCH_WORKER: Final = Method[cluster.WatchWorkerRequest, cluster.Worker](
    CLUSTER + "WatchWorker", cluster.Worker.FromString, resumes=True
)
DRAIN_WORKER: Final = Method[cluster.DrainWorkerRequest, cluster.Worker](
    CLUSTER + "DrainWorker", cluster.Worker.FromString, Again.ALWAYS
)
UNDRAIN_WORKER: Final = Method[cluster.UndrainWorkerRequest, cluster.Worker](
    CLUSTER + "UndrainWorker", cluster.Worker.FromString, Again.ALWAYS
)
LIST_AUDIT: Final = Method[cluster.ListAuditRequest, cluster.ListAuditResponse](
    CLUSTER + "ListAudit", cluster.ListAuditResponse.FromString
)

APPLY_CALENDAR: Final = Method[calendars.ApplyCalendarRequest, calendars.Calendar](
    CALENDARS + "ApplyCalendar", calendars.Calendar.FromString, Again.ALWAYS, TAKING_ON
)
GET_CALENDAR: Final = Method[calendars.GetCalendarRequest, calendars.Calendar](
    CALENDARS + "GetCalendar", calendars.Calendar.FromString
)
LIST_CALENDARS: Final = Method[calendars.ListCalendarsRequest, calendars.ListCalendarsResponse](
    CALENDARS + "ListCalendars", calendars.ListCalendarsResponse.FromString
)
DELETE_CALENDAR: Final = Method[calendars.DeleteCalendarRequest, calendars.DeleteCalendarResponse](
    CALENDARS + "DeleteCalendar", calendars.DeleteCalendarResponse.FromString, Again.UNSENT
)

SET_POOL: Final = Method[pools.SetPoolRequest, pools.Pool](
    POOLS + "SetPool",
    pools.Pool.FromString,
    Again.UNSENT,  # a retry would conflict with the version that the first try has written
    LONG_CALL,
)
GET_POOL: Final = Method[pools.GetPoolRequest, pools.Pool](POOLS + "GetPool", pools.Pool.FromString)
LIST_POOLS: Final = Method[pools.ListPoolsRequest, pools.ListPoolsResponse](
    POOLS + "ListPools", pools.ListPoolsResponse.FromString
)
DELETE_POOL: Final = Method[pools.DeletePoolRequest, pools.DeletePoolResponse](
    POOLS + "DeletePool", pools.DeletePoolResponse.FromString, Again.UNSENT
)
PAUSE_POOL: Final = Method[pools.PausePoolRequest, pools.Pool](
    POOLS + "PausePool", pools.Pool.FromString, Again.ALWAYS, LONG_CALL
)
RESUME_POOL: Final = Method[pools.ResumePoolRequest, pools.Pool](
    POOLS + "ResumePool", pools.Pool.FromString, Again.ALWAYS, LONG_CALL
)

CREATE_TOKEN: Final = Method[auth.CreateTokenRequest, auth.CreateTokenResponse](
    AUTH + "CreateToken",
    auth.CreateTokenResponse.FromString,
    Again.UNSENT,  # each creates another
)
LIST_TOKENS: Final = Method[auth.ListTokensRequest, auth.ListTokensResponse](
    AUTH + "ListTokens", auth.ListTokensResponse.FromString
)
REVOKE_TOKEN: Final = Method[auth.RevokeTokenRequest, auth.Token](
    AUTH + "RevokeToken", auth.Token.FromString
)
GET_IDENTITY: Final = Method[auth.GetIdentityRequest, auth.Identity](
    AUTH + "GetIdentity", auth.Identity.FromString
)

ALL: Final[tuple[Method[Any, Any], ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Method)
)
"""Every call, for a test that compares them with the wire's own descriptors."""
