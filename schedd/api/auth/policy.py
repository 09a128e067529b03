"""Access rules: one for every method that a member serves. Pure.

    method ─▶ Rule ─┬─ kind   of caller: user, member or worker
                    ├─ role   the least role that the method requires
                    └─ where  the namespaces in which it requires that role

Invariants
- A method without a rule is always denied, and fails a test (`tests/unit/api/test_policy.py`).
- Running a program of one's own (`CreateJob`, `SubmitRun`) requires the role admin in the
  namespace. Operators work with existing definitions.
- Methods that show all namespaces, or act on the cluster, require their role in all namespaces.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from google.protobuf.message import Message

from schedd.api.services import DEFAULT_NAMESPACE
from schedd.core.auth.rights import EVERY, IdentityKind, Role
from schedkit.records import dataclass


class What(Enum):
    """Objects that requests name by id."""

    RUN = "run"
    DEAD_LETTER = "dead letter"
    BACKFILL = "backfill"
    REDRIVE = "redrive"


def _several(message: Message, field: str) -> Iterable[Any]:
    """Return the values of a field, repeated or not."""
    value = getattr(message, field)
    repeated: bool = message.DESCRIPTOR.fields_by_name[field].is_repeated
    return value if repeated else (value,)


@dataclass(frozen=True, slots=True)
class In:
    """The namespaces at a path of the request's fields, of which the first may be repeated.
    `unsaid`: the namespace if none is named.
    """

    path: str
    unsaid: str = DEFAULT_NAMESPACE

    def namespaces_of(self, request: Message) -> set[str]:
        first, _, rest = self.path.partition(".")
        values = _several(request, first)
        named = set(map(attrgetter(rest), values) if rest else values)
        return {each or self.unsaid for each in named} or {self.unsaid}


@dataclass(frozen=True, slots=True)
class Of:
    """The namespaces of the objects whose ids are in a field; they are looked up. `beside`:
    namespaces that the request names additionally, or instead.
    """

    what: What
    field: str
    beside: In | None = None

    def ids(self, request: Message) -> list[str]:
        """Return the ids of a request."""
        return [*_several(request, self.field)]


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of a method. `role` None: every caller of the kind may call it."""

    role: Role | None
    where: In | Of | None = None
    """None: in all namespaces."""
    kind: IdentityKind = IdentityKind.USER
    lately: bool = False
    """The method works without PostgreSQL: cached tokens are accepted while it doesn't answer."""


OPEN: Final = Rule(None, kind=IdentityKind.ANYBODY)
"""For all callers, without authentication."""
KNOWN: Final = Rule(None)
"""For all authenticated users, with any role."""


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
        ("WakeUp", "Relay", "Examine", "Refusals", "Changes", "Workers"), _MEMBER
    ),
    "grpc.health.v1.Health": dict.fromkeys(("Check", "Watch"), OPEN),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": KNOWN},
}

POLICY: Final[Mapping[str, Rule]] = {
    f"{service}.{method}": rule
    for service, rules in _SERVICES.items()
    for method, rule in rules.items()
}
"""Full name of a method → its rule."""
