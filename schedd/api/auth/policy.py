"""Access rules: one for every method that a member serves; and their check before a call runs.

    method ─▶ Rule ─┬─ kind   of caller: user, member or worker
                    ├─ role   the least role that the method requires
                    └─ where  the namespaces in which it requires that role

    authorize_method    by the method alone, before the request is read
    authorize_request   by the namespaces in the request, or of the objects that it names by id

Invariants
- A method without a rule is always denied, and fails a test (`tests/unit/api/test_policy.py`).
- Running a program of one's own (`CreateJob`, `SubmitRun`) requires the role admin in the
  namespace. Operators work with existing definitions.
- Methods that show all namespaces, or act on the cluster, require their role in all namespaces.
- An object in a namespace that the caller may not view is reported as not found.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from google.protobuf.message import Message

from schedd.api.errors import NotFoundError, PermissionDeniedError
from schedd.api.request_bounds import SERVICES, id_of
from schedd.api.services import DEFAULT_NAMESPACE, Services
from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role
from schedd.core.ids import BackfillId, Id, RedriveId, RunId
from schedd.core.runs.redrive import RedriveRecord
from schedd.core.runs.run_records import RunRecord
from schedd.core.timers.backfill import BackfillRecord
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


# Authorize callers: every call, before its function runs.

ASK: Final = "ask an admin for a token with that role: `schedctl auth token create`"


def authorize_method(who: CallerIdentity, method: str) -> None:
    """Raise PermissionDeniedError if the caller may never call this method (its full name)."""
    rule = _rule(who, method)
    if IdentityKind.ANYBODY in (rule.kind, who.kind):
        return
    if rule.role is not None and not who.may_somewhere(rule.role):
        where = "all namespaces" if rule.where is None else "the request's namespace"
        raise _lacking(who, method, rule.role, where)


async def authorize_request(
    services: Services, who: CallerIdentity, method: str, request: Message
) -> None:
    """Raise PermissionDeniedError, or NotFoundError for an object that the caller may not view.

    Needs no query for a caller with the role in all namespaces, else one at most.
    """
    rule = _rule(who, method)
    if rule.role is None or who.may(rule.role, EVERY):
        return
    if rule.where is None:
        raise _lacking(who, method, rule.role, "all namespaces")
    if isinstance(rule.where, In):
        namespaces = rule.where.namespaces_of(request)
    else:
        authorize_method(who, method)
        namespaces = await _of_named(services, who, rule.where, request)
    for namespace in sorted(namespaces):
        if not who.may(rule.role, namespace):
            where = "all namespaces" if namespace == EVERY else f"namespace {namespace[:130]}"
            raise _lacking(who, method, rule.role, where)


def _rule(who: CallerIdentity, method: str) -> Rule:
    """Return the rule of a method. Raises PermissionDeniedError for a caller of another kind."""
    rule = POLICY.get(method)
    if rule is None:
        raise PermissionDeniedError(
            f"the call {_short(method)} isn't allowed for any caller: this member has no"
            " access rule for this call",
            reason="NO_POLICY",
            remedy="upgrade the member",
        )
    if IdentityKind.ANYBODY not in (rule.kind, who.kind) and rule.kind is not who.kind:
        raise PermissionDeniedError(
            f"the call {_short(method)} requires the certificate of a {rule.kind.value}; the caller"
            f" is {who.actor}",
            reason="WRONG_KIND",
        )
    return rule


async def _of_named(services: Services, who: CallerIdentity, of: Of, request: Message) -> set[str]:
    """Return the namespaces of the named objects, or EVERY if none is named."""
    beside: set[str] = set()
    if of.beside is not None and (not of.ids(request) or getattr(request, of.beside.path)):
        beside = of.beside.namespaces_of(request)
    ids = {id_of(of.field, text): text for text in of.ids(request)}
    if not ids:
        return beside or {EVERY}
    found = await _namespaces_of(services, of.what, [*ids])
    for each, text in ids.items():
        if each not in found or not who.may(Role.VIEWER, found[each]):
            word = of.what.value
            raise NotFoundError(
                f"{word} {text} not found",
                reason=f"NO_SUCH_{word.upper().replace(' ', '_')}",
                remedy=f"see `schedctl {_LISTS[of.what]}`",
            )
    return set(found.values()) | beside


async def _namespaces_of(services: Services, what: What, ids: Sequence[Id]) -> dict[Id, str]:
    if what is What.RUN:
        runs = await services.store.get_runs([RunId(each) for each in ids])
        return {record.run.key.run_id: record.namespace for record in runs}
    found: dict[Id, str] = {}
    one: RunRecord | BackfillRecord | RedriveRecord | None
    for each in ids:
        if what is What.DEAD_LETTER:
            letter = await services.dead_letters.get(RunId(each))
            one = letter.run if letter else None
        elif what is What.BACKFILL:
            one = await services.backfills.get(BackfillId(each))
        else:
            one = await services.dead_letters.redrive(RedriveId(each))
        if one is not None:
            found[each] = one.namespace
    return found


_LISTS: Final = {
    What.RUN: "run list",
    What.DEAD_LETTER: "dlq list",
    What.BACKFILL: "job backfills",
    What.REDRIVE: "dlq redrives",
}


def _lacking(who: CallerIdentity, method: str, role: Role, where: str) -> PermissionDeniedError:
    what = (
        f"the call {_short(method)} requires the role {role.word} in {where}; {who.actor}"
        " doesn't have it"
    )
    return PermissionDeniedError(what, reason="ROLE_MISSING", remedy=ASK)


def _short(method: str) -> str:
    return method.rpartition(".")[2]
