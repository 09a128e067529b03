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
    from schedclient.values.base import Value
    from schedclient.values.cluster import (
        AccessToken,
        AuditEntry,
        Checkup,
        Cluster,
        Finding,
        Grant,
        Identity,
        LeaderTransfer,
        Member,
        NewToken,
        Shard,
        ShardMove,
        Worker,
    )
    from schedclient.values.dead_letters import DeadLetter, DeadLetterGroup, Redrive, RedrivePlan
    from schedclient.values.jobs import (
        After,
        Backfill,
        BackfillPlan,
        Calendar,
        DateRange,
        Instant,
        InstantExplanation,
        Job,
        Omitted,
        Pool,
    )
    from schedclient.values.runs import (
        Attempt,
        Check,
        ClusterEvent,
        Explanation,
        Gap,
        LogPiece,
        Parent,
        Result,
        Run,
        RunEvent,
        RunProgress,
        RunState,
    )
    from schedkit.errors import Misconfigured, ScheddError
    from schedkit.net.channel import TLS
else:  # a type checker that saw this would accept any name
    from importlib import import_module

    _NAMES = {
        "schedclient.values.cluster": (
            "AccessToken AuditEntry Checkup Cluster Finding Grant Identity LeaderTransfer Member "
            "NewToken Shard ShardMove Worker"
        ),
        "schedclient.values.jobs": (
            "After Backfill BackfillPlan Calendar DateRange Instant InstantExplanation Job Omitted"
            " Pool"
        ),
        "schedclient.calls.calendars": "CalendarSpec",
        "schedclient.client": "Client",
        "schedclient.values.dead_letters": "DeadLetter DeadLetterGroup Redrive RedrivePlan",
        "schedclient.errors": (
            "AlreadyExists ApiError ClusterError ClusterUnavailable Conflict DeadlineExceeded "
            "FailedPrecondition GuardBusy GuardError InternalError InvalidArgument NotBuilt "
            "NotFound Overloaded PermissionDenied RequestError StaleToken Unauthenticated "
            "Violation"
        ),
        "schedclient.values.runs": (
            "Attempt Check ClusterEvent Explanation Gap LogPiece Parent Result Run RunEvent "
            "RunProgress RunState"
        ),
        "schedclient.guards.file_guard": "FileGuard",
        "schedclient.handlers": "Context DontRetry RetryAfter handler",
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
