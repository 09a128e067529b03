"""The SDK of schedd: talk to a cluster from Python, and write handlers for its workers.

    from schedclient import Client

    async with Client("host:7420,host2:7420") as c:
        await c.jobs.create("ping", every="30s", http={"url": "https://example.com/ping"})

`SyncClient` is the same without an event loop. `TableGuard` and `FileGuard` make a table or a file
reject the writes of a replaced attempt (docs/fencing.md). Everything public is in `__all__`, and
loaded on first use: a handler's process needs no client, and starts in a third of the time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedclient.calls.calendars import CalendarSpec
    from schedclient.calls.specs import Http, JobSpec, Retry, Shell, Work
    from schedclient.client import Client
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
    from schedclient.guards.file_guard import FileGuard
    from schedclient.guards.table_guard import TableGuard
    from schedclient.handlers import Context, DontRetry, RetryAfter, handler
    from schedclient.sync import SyncClient
    from schedclient.values.access import AccessToken, Grant, Identity, NewToken
    from schedclient.values.backfills import Backfill, BackfillPlan, Omitted
    from schedclient.values.base import Value
    from schedclient.values.calendars import Calendar, DateRange
    from schedclient.values.cluster import (
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
    from schedclient.values.dead_letters import DeadLetter, DeadLetterGroup, Redrive, RedrivePlan
    from schedclient.values.events import ClusterEvent, Gap, RunEvent
    from schedclient.values.jobs import After, Instant, InstantExplanation, Job
    from schedclient.values.pools import Pool
    from schedclient.values.runs import (
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
    from schedkit.errors import Misconfigured, ScheddError
    from schedkit.net.channel import TLS
else:  # a type checker that saw this would accept any name
    from importlib import import_module

    _NAMES = {
        "schedclient.values.access": "AccessToken Grant Identity NewToken",
        "schedclient.values.backfills": "Backfill BackfillPlan Omitted",
        "schedclient.values.calendars": "Calendar DateRange",
        "schedclient.calls.calendars": "CalendarSpec",
        "schedclient.client": "Client",
        "schedclient.values.cluster": (
            "AuditEntry Checkup Cluster Finding LeaderTransfer Member Shard ShardMove Worker"
        ),
        "schedclient.values.dead_letters": "DeadLetter DeadLetterGroup Redrive RedrivePlan",
        "schedclient.errors": (
            "AlreadyExists ApiError ClusterError ClusterUnavailable Conflict DeadlineExceeded "
            "FailedPrecondition GuardBusy GuardError InternalError InvalidArgument NotBuilt "
            "NotFound Overloaded PermissionDenied RequestError StaleToken Unauthenticated "
            "Violation"
        ),
        "schedclient.values.events": "ClusterEvent Gap RunEvent",
        "schedclient.guards.file_guard": "FileGuard",
        "schedclient.handlers": "Context DontRetry RetryAfter handler",
        "schedclient.values.jobs": "After Instant InstantExplanation Job",
        "schedclient.values.pools": "Pool",
        "schedclient.values.runs": (
            "Attempt Check Explanation LogPiece Parent Result Run RunProgress RunState"
        ),
        "schedclient.calls.specs": "Http JobSpec Retry Shell Work",
        "schedclient.sync": "SyncClient",
        "schedclient.guards.table_guard": "TableGuard",
        "schedclient.values.base": "Value",
        "schedkit.net.channel": "TLS",
        "schedkit.errors": "Misconfigured ScheddError",
    }
    _HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Load a public name from its module on first use."""
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
    "LogPiece",
    "Member",
    "Misconfigured",
    "NewToken",
    "NotBuilt",
    "NotFound",
    "Omitted",
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
