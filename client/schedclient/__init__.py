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
    from schedclient.calls.calendars import CalendarSpec as CalendarSpec
    from schedclient.calls.specs import Http as Http
    from schedclient.calls.specs import JobSpec as JobSpec
    from schedclient.calls.specs import Retry as Retry
    from schedclient.calls.specs import Shell as Shell
    from schedclient.calls.specs import Work as Work
    from schedclient.client import Client as Client
    from schedclient.errors import AlreadyExists as AlreadyExists
    from schedclient.errors import ApiError as ApiError
    from schedclient.errors import ClusterError as ClusterError
    from schedclient.errors import ClusterUnavailable as ClusterUnavailable
    from schedclient.errors import Conflict as Conflict
    from schedclient.errors import DeadlineExceeded as DeadlineExceeded
    from schedclient.errors import FailedPrecondition as FailedPrecondition
    from schedclient.errors import GuardBusy as GuardBusy
    from schedclient.errors import GuardError as GuardError
    from schedclient.errors import InternalError as InternalError
    from schedclient.errors import InvalidArgument as InvalidArgument
    from schedclient.errors import NotBuilt as NotBuilt
    from schedclient.errors import NotFound as NotFound
    from schedclient.errors import Overloaded as Overloaded
    from schedclient.errors import PermissionDenied as PermissionDenied
    from schedclient.errors import RequestError as RequestError
    from schedclient.errors import StaleToken as StaleToken
    from schedclient.errors import Unauthenticated as Unauthenticated
    from schedclient.errors import Violation as Violation
    from schedclient.guards.file_guard import FileGuard as FileGuard
    from schedclient.guards.table_guard import TableGuard as TableGuard
    from schedclient.handlers import Context as Context
    from schedclient.handlers import DontRetry as DontRetry
    from schedclient.handlers import RetryAfter as RetryAfter
    from schedclient.handlers import handler as handler
    from schedclient.sync import SyncClient as SyncClient
    from schedclient.values.base import Value as Value
    from schedclient.values.cluster import AccessToken as AccessToken
    from schedclient.values.cluster import AuditEntry as AuditEntry
    from schedclient.values.cluster import Checkup as Checkup
    from schedclient.values.cluster import Cluster as Cluster
    from schedclient.values.cluster import Finding as Finding
    from schedclient.values.cluster import Grant as Grant
    from schedclient.values.cluster import Identity as Identity
    from schedclient.values.cluster import LeaderTransfer as LeaderTransfer
    from schedclient.values.cluster import Member as Member
    from schedclient.values.cluster import NewToken as NewToken
    from schedclient.values.cluster import Shard as Shard
    from schedclient.values.cluster import ShardMove as ShardMove
    from schedclient.values.cluster import Worker as Worker
    from schedclient.values.dead_letters import DeadLetter as DeadLetter
    from schedclient.values.dead_letters import DeadLetterGroup as DeadLetterGroup
    from schedclient.values.dead_letters import Redrive as Redrive
    from schedclient.values.dead_letters import RedrivePlan as RedrivePlan
    from schedclient.values.jobs import After as After
    from schedclient.values.jobs import Backfill as Backfill
    from schedclient.values.jobs import BackfillPlan as BackfillPlan
    from schedclient.values.jobs import Calendar as Calendar
    from schedclient.values.jobs import DateRange as DateRange
    from schedclient.values.jobs import Instant as Instant
    from schedclient.values.jobs import InstantExplanation as InstantExplanation
    from schedclient.values.jobs import Job as Job
    from schedclient.values.jobs import Omitted as Omitted
    from schedclient.values.jobs import Pool as Pool
    from schedclient.values.runs import Attempt as Attempt
    from schedclient.values.runs import Check as Check
    from schedclient.values.runs import ClusterEvent as ClusterEvent
    from schedclient.values.runs import Explanation as Explanation
    from schedclient.values.runs import Gap as Gap
    from schedclient.values.runs import LogPiece as LogPiece
    from schedclient.values.runs import Parent as Parent
    from schedclient.values.runs import Result as Result
    from schedclient.values.runs import Run as Run
    from schedclient.values.runs import RunEvent as RunEvent
    from schedclient.values.runs import RunProgress as RunProgress
    from schedclient.values.runs import RunState as RunState
    from schedkit.errors import Misconfigured as Misconfigured
    from schedkit.errors import ScheddError as ScheddError
    from schedkit.net.channel import TLS as TLS
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
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> object:
        """Load a public name from its module on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
