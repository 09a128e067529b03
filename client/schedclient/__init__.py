"""The SDK of schedd: talk to a cluster from Python, and write handlers for its workers.

    from schedclient import Client

    async with Client("host:7420,host2:7420") as c:
        await c.jobs.create("ping", every="30s", http={"url": "https://example.com/ping"})

`SyncClient` is the same without an event loop. With `TableGuard` and `FileGuard` a table or a file
refuses what an attempt writes that was replaced meanwhile (docs/fencing.md). Everything public is
listed in `__all__`, and loaded when it is first asked for: a handler's process needs no client, and
starts in a third of the time without.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedclient.access_values import AccessToken, Grant, Identity, NewToken
    from schedclient.backfill_values import Backfill, BackfillPlan, LeftOut
    from schedclient.calendar_values import Calendar, DateRange
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
    from schedclient.dead_letter_values import DeadLetter, DeadLetterGroup, Redrive, RedrivePlan
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
    from schedclient.event_values import ClusterEvent, Gap, RunEvent
    from schedclient.file_guard import FileGuard
    from schedclient.handlers import Context, DontRetry, RetryAfter, handler
    from schedclient.job_values import After, Instant, InstantExplanation, Job
    from schedclient.pool_values import Pool
    from schedclient.run_values import (
        Attempt,
        Check,
        Explanation,
        LogPiece,
        Parent,
        Result,
        Run,
        RunProgress,
        RunState,
    )
    from schedclient.specs import Http, JobSpec, Retry, Shell, Work
    from schedclient.sync import SyncClient
    from schedclient.table_guard import TableGuard
    from schedclient.values import Value
    from schedkit.channel import TLS
    from schedkit.errors import Misconfigured, ScheddError
else:  # a type checker that saw this would take any name for there
    from importlib import import_module

    _NAMES = {
        "schedclient.access_values": "AccessToken Grant Identity NewToken",
        "schedclient.backfill_values": "Backfill BackfillPlan LeftOut",
        "schedclient.calendar_values": "Calendar DateRange",
        "schedclient.calendars": "CalendarSpec",
        "schedclient.client": "Client",
        "schedclient.cluster_values": (
            "AuditEntry Checkup Cluster Finding LeaderTransfer Member Shard ShardMove Worker"
        ),
        "schedclient.dead_letter_values": "DeadLetter DeadLetterGroup Redrive RedrivePlan",
        "schedclient.errors": (
            "AlreadyExists ApiError ClusterError ClusterUnavailable Conflict DeadlineExceeded "
            "FailedPrecondition GuardBusy GuardError InternalError InvalidArgument NotBuilt "
            "NotFound Overloaded PermissionDenied RequestError StaleToken Unauthenticated "
            "Violation"
        ),
        "schedclient.event_values": "ClusterEvent Gap RunEvent",
        "schedclient.file_guard": "FileGuard",
        "schedclient.handlers": "Context DontRetry RetryAfter handler",
        "schedclient.job_values": "After Instant InstantExplanation Job",
        "schedclient.pool_values": "Pool",
        "schedclient.run_values": (
            "Attempt Check Explanation LogPiece Parent Result Run RunProgress RunState"
        ),
        "schedclient.specs": "Http JobSpec Retry Shell Work",
        "schedclient.sync": "SyncClient",
        "schedclient.table_guard": "TableGuard",
        "schedclient.values": "Value",
        "schedkit.channel": "TLS",
        "schedkit.errors": "Misconfigured ScheddError",
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """What nobody has asked for yet, from where it is defined."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "TLS",
    "AccessToken",
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
    "ClusterEvent",
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
    "Gap",
    "Grant",
    "GuardBusy",
    "GuardError",
    "Http",
    "Identity",
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
    "NewToken",
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
    "RunEvent",
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
