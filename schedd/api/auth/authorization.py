"""Authorize callers: every call, before its function runs, by the rules of `policy`.

    authorize_method    by the method alone, before the request is read
    authorize_request   by the request: the namespaces in the request, or the namespaces of objects
                        that the request names by id

Invariant: namespaces are isolated. An object in a namespace that the caller may not view is
reported as not found.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from google.protobuf.message import Message

from schedd.api.auth.policy import POLICY, In, Of, Rule, What
from schedd.api.errors import NotFoundError, PermissionDeniedError
from schedd.api.field_bounds import id_of
from schedd.api.services import Services
from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role
from schedd.core.ids import BackfillId, Id, RedriveId, RunId

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
            raise _lacking(who, method, rule.role, _named(namespace))


def _rule(who: CallerIdentity, method: str) -> Rule:
    """Return the rule of a method. Raises PermissionDeniedError for a caller of another kind."""
    rule = POLICY.get(method)
    if rule is None:
        raise _denied(
            f"the call {_short(method)} isn't allowed for any caller: this member has no"
            " access rule for this call",
            "NO_POLICY",
            "upgrade the member",
        )
    if IdentityKind.ANYBODY not in (rule.kind, who.kind) and rule.kind is not who.kind:
        raise _denied(
            f"the call {_short(method)} requires the certificate of a {rule.kind.value}; the caller"
            f" is {who.actor}",
            "WRONG_KIND",
            "",
        )
    return rule


async def _of_named(services: Services, who: CallerIdentity, of: Of, request: Message) -> set[str]:
    """Return the namespaces of the objects that the request names, or EVERY if it names none.
    Raises NotFoundError for an object that the caller may not view.
    """
    beside: set[str] = set()
    if of.beside is not None and (not of.ids(request) or getattr(request, of.beside.path)):
        beside = of.beside.namespaces_of(request)
    ids = {id_of(of.field, text): text for text in of.ids(request)}
    if not ids:
        return beside or {EVERY}
    found = await _NAMESPACES_OF[of.what](services, [*ids])
    for each, text in ids.items():
        if each not in found or not who.may(Role.VIEWER, found[each]):
            word = of.what.value
            raise NotFoundError(
                f"{word} {text} not found",
                reason=f"NO_SUCH_{word.upper().replace(' ', '_')}",
                remedy=f"see `schedctl {_LISTS[of.what]}`",
            )
    return set(found.values()) | beside


async def _of_runs(services: Services, runs: Sequence[Id]) -> dict[Id, str]:
    records = await services.store.get_runs([RunId(run) for run in runs])
    return {record.run.key.run_id: record.namespace for record in records}


async def _of_letters(services: Services, letters: Sequence[Id]) -> dict[Id, str]:
    records = [await services.dead_letters.get(RunId(each)) for each in letters]
    return {each: one.run.namespace for each, one in zip(letters, records, strict=True) if one}


async def _of_backfills(services: Services, backfills: Sequence[Id]) -> dict[Id, str]:
    records = [await services.backfills.get(BackfillId(each)) for each in backfills]
    return {each: one.namespace for each, one in zip(backfills, records, strict=True) if one}


async def _of_redrives(services: Services, redrives: Sequence[Id]) -> dict[Id, str]:
    records = [await services.dead_letters.redrive(RedriveId(each)) for each in redrives]
    return {each: one.namespace for each, one in zip(redrives, records, strict=True) if one}


_Look: TypeAlias = Callable[[Services, Sequence[Id]], Awaitable[dict[Id, str]]]
_NAMESPACES_OF: Final[dict[What, _Look]] = {
    What.RUN: _of_runs,
    What.DEAD_LETTER: _of_letters,
    What.BACKFILL: _of_backfills,
    What.REDRIVE: _of_redrives,
}
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
    return _denied(what, "ROLE_MISSING", ASK)


def _denied(what: str, reason: str, remedy: str) -> PermissionDeniedError:
    return PermissionDeniedError(what, reason=reason, remedy=remedy)


def _named(namespace: str) -> str:
    return "all namespaces" if namespace == EVERY else f"namespace {namespace[:130]}"


def _short(method: str) -> str:
    return method.rpartition(".")[2]
