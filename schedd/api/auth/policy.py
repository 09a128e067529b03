"""Who may call what: a line for every method that a member serves. Pure.

    method ─▶ Rule ─┬─ kind   a member's or a worker's own, by its certificate
                    ├─ role   the least that it takes
                    └─ where  which namespace it takes that in, as the request tells

Invariants
- A method without a line is served to nobody, and fails a test (`tests/unit/api/test_policy.py`).
- Whoever may have a program run (`CreateJob`, `SubmitRun`) is admin of the namespace: it is as
  mighty as that. An operator works with what others have defined.
- What tells of all namespaces, or acts on the cluster, takes its role in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from google.protobuf.message import Message

from schedd.api.services import DEFAULT_NAMESPACE
from schedd.core.jobs.rights import EVERY, IdentityKind, Role


class What(Enum):
    """What is named by an id alone."""

    RUN = "run"
    DEAD_LETTER = "dead letter"
    BACKFILL = "backfill"
    REDRIVE = "redrive"


def _several(message: Message, field: str) -> Iterable[Any]:
    """The values of a field, be it a repeated one or not."""
    value = getattr(message, field)
    repeated: bool = message.DESCRIPTOR.fields_by_name[field].is_repeated
    return value if repeated else (value,)


@dataclass(frozen=True, slots=True)
class In:
    """The namespaces that stand at a path of the request's fields, of which the first may be a
    repeated one; `unsaid` where none is named.
    """

    path: str
    unsaid: str = DEFAULT_NAMESPACE

    def of(self, request: Message) -> set[str]:
        """Which these are."""
        first, _, rest = self.path.partition(".")
        values = _several(request, first)
        named = set(map(attrgetter(rest), values) if rest else values)
        return {each or self.unsaid for each in named} or {self.unsaid}


@dataclass(frozen=True, slots=True)
class Of:
    """The namespaces of what is named by the ids in a field; they are looked up. `beside`: those
    that are named as well, or instead.
    """

    what: What
    field: str
    beside: In | None = None

    def ids(self, request: Message) -> list[str]:
        """As they were sent."""
        return [*_several(request, self.field)]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a method takes. `role` None: it is open to whoever is of the kind."""

    role: Role | None
    where: In | Of | None = None
    """None: in all namespaces."""
    kind: IdentityKind = IdentityKind.USER
    lately: bool = False
    """It tells of PostgreSQL while that says nothing: to who was known lately, then."""


OPEN: Final = Rule(None, kind=IdentityKind.ANYBODY)
"""Served without a question, before anybody is known."""
KNOWN: Final = Rule(None)
"""To whoever is known, whatever they may."""


_NAMESPACE: Final = In("namespace")
_VIEW: Final = Rule(Role.VIEWER, _NAMESPACE)
_OPERATE: Final = Rule(Role.OPERATOR, _NAMESPACE)
_DEFINE: Final = Rule(Role.ADMIN, _NAMESPACE)
_RUN: Final = Of(What.RUN, "run_id")
_BACKFILL: Final = Of(What.BACKFILL, "backfill_id")
_REDRIVE: Final = Of(What.REDRIVE, "redrive_id")
_VIEW_RUN: Final = Rule(Role.VIEWER, _RUN)
_OPERATE_RUN: Final = Rule(Role.OPERATOR, _RUN)
_VIEW_ALL: Final = Rule(Role.VIEWER)
_OPERATE_ALL: Final = Rule(Role.OPERATOR)
_ADMIN_ALL: Final = Rule(Role.ADMIN)
_MEMBER: Final = Rule(None, kind=IdentityKind.MEMBER)

_JOBS: Final = {
    "CreateJob": Rule(Role.ADMIN, In("job.namespace")),
    "BatchCreateJobs": Rule(Role.ADMIN, In("requests.job.namespace")),
    "GetJob": _VIEW,
    "ListJobs": _VIEW,
    "UpdateJob": Rule(Role.ADMIN, In("job.namespace")),
    "DeleteJob": _DEFINE,
    "PauseJob": _OPERATE,
    "ResumeJob": _OPERATE,
    "TriggerJob": _OPERATE,
    "BackfillJob": _OPERATE,
    "GetBackfill": Rule(Role.VIEWER, _BACKFILL),
    "ListBackfills": _VIEW,
    "WatchBackfill": Rule(Role.VIEWER, _BACKFILL),
    "CancelBackfill": Rule(Role.OPERATOR, _BACKFILL),
    "ListNextInstants": _VIEW,
    "ExplainInstant": _VIEW,
    "ExplainCron": _VIEW,
}
_RUNS: Final = {
    "SubmitRun": _DEFINE,
    "BatchSubmitRuns": Rule(Role.ADMIN, In("requests.namespace")),
    "GetRun": _VIEW_RUN,
    "ListRuns": _VIEW,
    "WatchRuns": Rule(Role.VIEWER, Of(What.RUN, "run_ids", _NAMESPACE)),
    "CancelRun": _OPERATE_RUN,
    "RetryRun": _OPERATE_RUN,
    "ListAttempts": _VIEW_RUN,
    "GetRunResult": _VIEW_RUN,
    "ReadResult": _VIEW_RUN,
    "ReadLogs": _VIEW_RUN,
    "ExplainRun": _VIEW_RUN,
    "ListDeadLetters": _VIEW,
    "GetDeadLetter": Rule(Role.VIEWER, Of(What.DEAD_LETTER, "run_id")),
    "ListDeadLetterGroups": _VIEW,
    "DiscardDeadLetters": _OPERATE,
    "RedriveDeadLetters": _OPERATE,
    "GetRedrive": Rule(Role.VIEWER, _REDRIVE),
    "WatchRedrive": Rule(Role.VIEWER, _REDRIVE),
    "ListRedrives": _VIEW,
    "StopRedrive": Rule(Role.OPERATOR, _REDRIVE),
    "ResumeRedrive": Rule(Role.OPERATOR, _REDRIVE),
}
_CLUSTER: Final = {
    "GetCluster": _VIEW_ALL,
    "ListMembers": _VIEW_ALL,
    "ListShards": _VIEW_ALL,
    "TransferLeader": _ADMIN_ALL,
    "RebalanceCluster": _ADMIN_ALL,
    "PauseCluster": _ADMIN_ALL,
    "ResumeCluster": _ADMIN_ALL,
    "CheckCluster": Rule(Role.VIEWER, lately=True),
    "ListWorkers": _VIEW_ALL,
    "GetWorker": _VIEW_ALL,
    "WatchWorker": _VIEW_ALL,
    "DrainWorker": _OPERATE_ALL,
    "UndrainWorker": _OPERATE_ALL,
    "ListAudit": _ADMIN_ALL,
}
_CALENDARS: Final = {
    "ApplyCalendar": Rule(Role.ADMIN, In("calendar.namespace")),
    "GetCalendar": _VIEW,
    "ListCalendars": _VIEW,
    "DeleteCalendar": _DEFINE,
}
_POOLS: Final = {
    "SetPool": Rule(Role.ADMIN, In("pool.namespace")),
    "GetPool": _VIEW,
    "ListPools": _VIEW,
    "DeletePool": _DEFINE,
    "PausePool": _OPERATE,
    "ResumePool": _OPERATE,
}
_AUTH: Final = {
    "CreateToken": Rule(Role.ADMIN, In("namespaces", EVERY)),
    "ListTokens": _ADMIN_ALL,
    "RevokeToken": _ADMIN_ALL,
    "GetIdentity": KNOWN,
}
_SERVICES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "schedd.v1.JobService": _JOBS,
    "schedd.v1.RunService": _RUNS,
    "schedd.v1.ClusterService": _CLUSTER,
    "schedd.v1.CalendarService": _CALENDARS,
    "schedd.v1.PoolService": _POOLS,
    "schedd.v1.AuthService": _AUTH,
    "schedd.v1.WorkerService": {"Attach": Rule(None, kind=IdentityKind.WORKER)},
    "schedd.v1.PeerService": dict.fromkeys(
        ("Nudge", "Relay", "Examine", "Refusals", "Changes", "Workers"), _MEMBER
    ),
    "grpc.health.v1.Health": dict.fromkeys(("Check", "Watch"), OPEN),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": KNOWN},
}

POLICY: Final[Mapping[str, Rule]] = {
    f"{service}.{method}": rule
    for service, rules in _SERVICES.items()
    for method, rule in rules.items()
}
"""Full name of a method → what it takes."""
