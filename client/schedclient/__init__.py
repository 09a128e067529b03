"""The SDK of schedd: talk to a cluster from Python, and write handlers for its workers.

    from schedclient import Client

    async with Client("host:7420,host2:7420") as c:
        await c.jobs.create("ping", every="30s", http={"url": "https://example.com/ping"})

`SyncClient` is the same without an event loop. With `TableGuard` and `FileGuard` a table or a file
refuses what an attempt writes that was replaced meanwhile (docs/fencing.md). Everything public is
listed in `__all__`.
"""

from schedclient.calendars import CalendarSpec
from schedclient.client import Client
from schedclient.cluster_values import (
    AuditEntry,
    Checkup,
    Cluster,
    Finding,
    LeaderTransfer,
    Member,
    Shard,
    ShardMove,
    Worker,
)
from schedclient.errors import (
    AlreadyExists,
    ApiError,
    ClusterError,
    ClusterUnavailable,
    Conflict,
    DeadlineExceeded,
    FailedPrecondition,
    GuardBusy,
    GuardError,
    InternalError,
    InvalidArgument,
    NotBuilt,
    NotFound,
    Overloaded,
    PermissionDenied,
    RequestError,
    StaleToken,
    Unauthenticated,
    Violation,
)
from schedclient.file_guard import FileGuard
from schedclient.handlers import Context, DontRetry, RetryAfter, handler
from schedclient.specs import Http, JobSpec, Retry, Shell, Work
from schedclient.sync import SyncClient
from schedclient.table_guard import TableGuard
from schedclient.values import (
    After,
    Attempt,
    Backfill,
    BackfillPlan,
    Calendar,
    Check,
    DateRange,
    DeadLetter,
    DeadLetterGroup,
    Explanation,
    Instant,
    InstantExplanation,
    Job,
    LeftOut,
    LogPiece,
    Parent,
    Pool,
    Redrive,
    RedrivePlan,
    Result,
    Run,
    RunProgress,
    RunState,
    Value,
)
from schedkit.channel import TLS
from schedkit.errors import Misconfigured, ScheddError

__all__ = [
    "TLS",
    "After",
    "AlreadyExists",
    "ApiError",
    "Attempt",
    "AuditEntry",
    "Backfill",
    "BackfillPlan",
    "Calendar",
    "CalendarSpec",
    "Check",
    "Checkup",
    "Client",
    "Cluster",
    "ClusterError",
    "ClusterUnavailable",
    "Conflict",
    "Context",
    "DateRange",
    "DeadLetter",
    "DeadLetterGroup",
    "DeadlineExceeded",
    "DontRetry",
    "Explanation",
    "FailedPrecondition",
    "FileGuard",
    "Finding",
    "GuardBusy",
    "GuardError",
    "Http",
    "Instant",
    "InstantExplanation",
    "InternalError",
    "InvalidArgument",
    "Job",
    "JobSpec",
    "LeaderTransfer",
    "LeftOut",
    "LogPiece",
    "Member",
    "Misconfigured",
    "NotBuilt",
    "NotFound",
    "Overloaded",
    "Parent",
    "PermissionDenied",
    "Pool",
    "Redrive",
    "RedrivePlan",
    "RequestError",
    "Result",
    "Retry",
    "RetryAfter",
    "Run",
    "RunProgress",
    "RunState",
    "ScheddError",
    "Shard",
    "ShardMove",
    "Shell",
    "StaleToken",
    "SyncClient",
    "TableGuard",
    "Unauthenticated",
    "Value",
    "Violation",
    "Work",
    "Worker",
    "handler",
]
