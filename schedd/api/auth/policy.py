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

from schedd.api.request_bounds import SERVICES
from schedd.api.services import DEFAULT_NAMESPACE
from schedd.core.auth.rights import EVERY, IdentityKind, Role
from schedkit.records import dataclass
from schedproto.v1 import peer_service_pb2, worker_service_pb2


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
_RUN: Final = Of(What.RUN, "run_id")
_BACKFILL: Final = Of(What.BACKFILL, "backfill_id")
_REDRIVE: Final = Of(What.REDRIVE, "redrive_id")

_VIEW: Final = Rule(Role.VIEWER, _NAMESPACE)
_OPERATE: Final = Rule(Role.OPERATOR, _NAMESPACE)
_VIEW_ALL: Final = Rule(Role.VIEWER)
_ADMIN_ALL: Final = Rule(Role.ADMIN)

_RULES: Final = (
    # Objects of a namespace
    (_VIEW, "GetJob ListJobs ListBackfills ListNextInstants ExplainInstant ExplainCron"),
    (_VIEW, "ListRuns ListDeadLetters ListDeadLetterGroups ListRedrives"),
    (_VIEW, "GetCalendar ListCalendars GetPool ListPools"),
    (_OPERATE, "PauseJob ResumeJob TriggerJob BackfillJob PausePool ResumePool"),
    (_OPERATE, "DiscardDeadLetters RedriveDeadLetters"),
    (Rule(Role.ADMIN, _NAMESPACE), "SubmitRun DeleteJob DeleteCalendar DeletePool"),
    (Rule(Role.ADMIN, In("requests.namespace")), "BatchSubmitRuns"),
    (Rule(Role.ADMIN, In("job.namespace")), "CreateJob UpdateJob"),
    (Rule(Role.ADMIN, In("requests.job.namespace")), "BatchCreateJobs"),
    (Rule(Role.ADMIN, In("calendar.namespace")), "ApplyCalendar"),
    (Rule(Role.ADMIN, In("pool.namespace")), "SetPool"),
    (Rule(Role.ADMIN, In("namespaces", EVERY)), "CreateToken"),
    # Objects by id
    (Rule(Role.VIEWER, _RUN), "GetRun ListAttempts GetRunResult ReadResult ReadLogs ExplainRun"),
    (Rule(Role.OPERATOR, _RUN), "CancelRun RetryRun"),
    (Rule(Role.VIEWER, Of(What.RUN, "run_ids", _NAMESPACE)), "WatchRuns"),
    (Rule(Role.VIEWER, Of(What.DEAD_LETTER, "run_id")), "GetDeadLetter"),
    (Rule(Role.VIEWER, _BACKFILL), "GetBackfill WatchBackfill"),
    (Rule(Role.OPERATOR, _BACKFILL), "CancelBackfill"),
    (Rule(Role.VIEWER, _REDRIVE), "GetRedrive WatchRedrive"),
    (Rule(Role.OPERATOR, _REDRIVE), "StopRedrive ResumeRedrive"),
    # The cluster, and access to it
    (_VIEW_ALL, "GetCluster ListMembers ListShards ListWorkers GetWorker WatchWorker"),
    (Rule(Role.VIEWER, lately=True), "CheckCluster"),
    (Rule(Role.OPERATOR), "DrainWorker UndrainWorker"),
    (_ADMIN_ALL, "TransferLeader RebalanceCluster PauseCluster ResumeCluster"),
    (_ADMIN_ALL, "ListAudit ListTokens RevokeToken"),
    (KNOWN, "GetIdentity"),
    # Calls of workers and members
    (Rule(None, kind=IdentityKind.WORKER), "Attach"),
    (Rule(None, kind=IdentityKind.MEMBER), "WakeUp Relay Examine Refusals Changes Workers"),
)
_NAMED: Final = {name: rule for rule, names in _RULES for name in names.split()}

POLICY: Final[Mapping[str, Rule]] = {
    **{
        method.full_name: _NAMED[method.name]
        for service in (
            *SERVICES,
            worker_service_pb2.DESCRIPTOR.services_by_name["WorkerService"],
            peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"],
        )
        for method in service.methods
        if method.name in _NAMED
    },
    **dict.fromkeys(("grpc.health.v1.Health.Check", "grpc.health.v1.Health.Watch"), OPEN),
    "grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo": KNOWN,
}
"""Full name of a method → its rule."""
