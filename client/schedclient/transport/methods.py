"""The calls of the API: request, answer, and whether a retry is safe."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
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
    """A call, which its request is named after. `try_timeout`: seconds for one try while other
    endpoints remain.
    """

    request: type[Req_contra]
    answer: type[Res_co]
    again: Again = Again.ALWAYS
    try_timeout: float = 5.0
    resumes: bool = False
    """Whether the reader of this stream resumes it if it breaks."""

    @cached_property
    def name(self) -> str:
        return self.request.DESCRIPTOR.name.removesuffix("Request")

    @cached_property
    def path(self) -> str:
        """Return the path of the call: its service is in the proto file of its request."""
        [service] = self.request.DESCRIPTOR.file.services_by_name.values()
        return f"/{service.full_name}/{self.name}"

    def reads(self, request: Message) -> bool:
        tried = any(getattr(request, field, False) for field in TRIALS)
        return tried or self.name.startswith(READS)


LONG_CALL: Final = 12.0
"""Timeout in seconds of calls that write many rows, or wait until a job starts no run any more (a
start_by is 5 s).
"""

TAKING_ON: Final = 60.0
"""Timeout in seconds of a change of a calendar, which updates every job that uses it."""

CREATE_JOB: Final = Method(jobs.CreateJobRequest, job_pb2.Job)
BATCH_CREATE_JOBS: Final = Method(
    jobs.BatchCreateJobsRequest, jobs.BatchCreateJobsResponse, try_timeout=LONG_CALL
)
GET_JOB: Final = Method(jobs.GetJobRequest, job_pb2.Job)
LIST_JOBS: Final = Method(jobs.ListJobsRequest, jobs.ListJobsResponse)
UPDATE_JOB: Final = Method(jobs.UpdateJobRequest, job_pb2.Job, Again.UNSENT, LONG_CALL)
DELETE_JOB: Final = Method(jobs.DeleteJobRequest, jobs.DeleteJobResponse, Again.UNSENT, LONG_CALL)
PAUSE_JOB: Final = Method(jobs.PauseJobRequest, job_pb2.Job, try_timeout=LONG_CALL)
RESUME_JOB: Final = Method(jobs.ResumeJobRequest, job_pb2.Job, try_timeout=LONG_CALL)
TRIGGER_JOB: Final = Method(jobs.TriggerJobRequest, run_pb2.Run)
BACKFILL_JOB: Final = Method(
    jobs.BackfillJobRequest, jobs.BackfillJobResponse, try_timeout=LONG_CALL
)
GET_BACKFILL: Final = Method(jobs.GetBackfillRequest, jobs.Backfill)
LIST_BACKFILLS: Final = Method(jobs.ListBackfillsRequest, jobs.ListBackfillsResponse)
WATCH_BACKFILL: Final = Method(jobs.WatchBackfillRequest, jobs.Backfill, resumes=True)
CANCEL_BACKFILL: Final = Method(jobs.CancelBackfillRequest, jobs.Backfill)
LIST_NEXT: Final = Method(jobs.ListNextInstantsRequest, jobs.ListNextInstantsResponse)
EXPLAIN_INSTANT: Final = Method(jobs.ExplainInstantRequest, jobs.ExplainInstantResponse)

SUBMIT_RUN: Final = Method(runs.SubmitRunRequest, run_pb2.Run)
BATCH_SUBMIT_RUNS: Final = Method(
    runs.BatchSubmitRunsRequest, runs.BatchSubmitRunsResponse, try_timeout=LONG_CALL
)
GET_RUN: Final = Method(runs.GetRunRequest, run_pb2.Run)
LIST_RUNS: Final = Method(runs.ListRunsRequest, runs.ListRunsResponse)
WATCH_RUNS: Final = Method(runs.WatchRunsRequest, runs.RunEvent, resumes=True)
CANCEL_RUN: Final = Method(runs.CancelRunRequest, run_pb2.Run)
LIST_ATTEMPTS: Final = Method(runs.ListAttemptsRequest, runs.ListAttemptsResponse)
GET_RESULT: Final = Method(runs.GetRunResultRequest, run_pb2.RunResult)
READ_RESULT: Final = Method(runs.ReadResultRequest, run_pb2.ResultPiece)
READ_LOGS: Final = Method(runs.ReadLogsRequest, run_pb2.LogPiece, resumes=True)
EXPLAIN_RUN: Final = Method(runs.ExplainRunRequest, runs.ExplainRunResponse)
LIST_DEAD: Final = Method(runs.ListDeadLettersRequest, runs.ListDeadLettersResponse)
RETRY_RUN: Final = Method(runs.RetryRunRequest, run_pb2.Run)
GET_DEAD: Final = Method(runs.GetDeadLetterRequest, run_pb2.DeadLetter)
LIST_DEAD_GROUPS: Final = Method(
    runs.ListDeadLetterGroupsRequest, runs.ListDeadLetterGroupsResponse
)
# a retry would return 0, and select what has failed since
DISCARD_DEAD: Final = Method(
    runs.DiscardDeadLettersRequest, runs.DiscardDeadLettersResponse, Again.UNSENT, LONG_CALL
)
REDRIVE_DEAD: Final = Method(
    runs.RedriveDeadLettersRequest, runs.RedriveDeadLettersResponse, try_timeout=LONG_CALL
)
GET_REDRIVE: Final = Method(runs.GetRedriveRequest, run_pb2.Redrive)
LIST_REDRIVES: Final = Method(runs.ListRedrivesRequest, runs.ListRedrivesResponse)
WATCH_REDRIVE: Final = Method(runs.WatchRedriveRequest, run_pb2.Redrive, resumes=True)
STOP_REDRIVE: Final = Method(runs.StopRedriveRequest, run_pb2.Redrive)
RESUME_REDRIVE: Final = Method(runs.ResumeRedriveRequest, run_pb2.Redrive)

GET_CLUSTER: Final = Method(cluster.GetClusterRequest, cluster.Cluster)
LIST_MEMBERS: Final = Method(cluster.ListMembersRequest, cluster.ListMembersResponse)
LIST_SHARDS: Final = Method(cluster.ListShardsRequest, cluster.ListShardsResponse)
TRANSFER_LEADER: Final = Method(
    cluster.TransferLeaderRequest, cluster.TransferLeaderResponse, Again.UNSENT, LONG_CALL
)
# each try is a line of the audit log
REBALANCE: Final = Method(
    cluster.RebalanceClusterRequest, cluster.RebalanceClusterResponse, Again.UNSENT, LONG_CALL
)
CHECK_CLUSTER: Final = Method(
    cluster.CheckClusterRequest, cluster.CheckClusterResponse, try_timeout=LONG_CALL
)
PAUSE_CLUSTER: Final = Method(cluster.PauseClusterRequest, cluster.Cluster, try_timeout=LONG_CALL)
RESUME_CLUSTER: Final = Method(cluster.ResumeClusterRequest, cluster.Cluster, try_timeout=LONG_CALL)
LIST_WORKERS: Final = Method(cluster.ListWorkersRequest, cluster.ListWorkersResponse)
GET_WORKER: Final = Method(cluster.GetWorkerRequest, cluster.Worker)
WATCH_WORKER: Final = Method(cluster.WatchWorkerRequest, cluster.Worker, resumes=True)
DRAIN_WORKER: Final = Method(cluster.DrainWorkerRequest, cluster.Worker)
UNDRAIN_WORKER: Final = Method(cluster.UndrainWorkerRequest, cluster.Worker)
LIST_AUDIT: Final = Method(cluster.ListAuditRequest, cluster.ListAuditResponse)

APPLY_CALENDAR: Final = Method(
    calendars.ApplyCalendarRequest, calendars.Calendar, try_timeout=TAKING_ON
)
GET_CALENDAR: Final = Method(calendars.GetCalendarRequest, calendars.Calendar)
LIST_CALENDARS: Final = Method(calendars.ListCalendarsRequest, calendars.ListCalendarsResponse)
DELETE_CALENDAR: Final = Method(
    calendars.DeleteCalendarRequest, calendars.DeleteCalendarResponse, Again.UNSENT
)

# a retry would conflict with the version that the first try has written
SET_POOL: Final = Method(pools.SetPoolRequest, pools.Pool, Again.UNSENT, LONG_CALL)
GET_POOL: Final = Method(pools.GetPoolRequest, pools.Pool)
LIST_POOLS: Final = Method(pools.ListPoolsRequest, pools.ListPoolsResponse)
DELETE_POOL: Final = Method(pools.DeletePoolRequest, pools.DeletePoolResponse, Again.UNSENT)
PAUSE_POOL: Final = Method(pools.PausePoolRequest, pools.Pool, try_timeout=LONG_CALL)
RESUME_POOL: Final = Method(pools.ResumePoolRequest, pools.Pool, try_timeout=LONG_CALL)

# each creates another
CREATE_TOKEN: Final = Method(auth.CreateTokenRequest, auth.CreateTokenResponse, Again.UNSENT)
LIST_TOKENS: Final = Method(auth.ListTokensRequest, auth.ListTokensResponse)
REVOKE_TOKEN: Final = Method(auth.RevokeTokenRequest, auth.Token)
GET_IDENTITY: Final = Method(auth.GetIdentityRequest, auth.Identity)

ALL: Final[tuple[Method[Any, Any], ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Method)
)
"""Every call, for a test that compares them with the wire's own descriptors."""
