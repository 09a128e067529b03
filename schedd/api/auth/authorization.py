"""Authorize callers: every call, before its function runs, by the rules of `policy`.

    authorize_method    by the method alone, before the request is read
    authorize_request   by the request: the namespaces in the request, or the namespaces of objects
                        that the request names by id

Invariant: namespaces are isolated. An object in a namespace that the caller may not view is
reported as not found.
"""

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import Message

from schedd.api.auth.policy import POLICY, In, Of, Rule, What
from schedd.api.errors import NotFoundError, PermissionDeniedError
from schedd.api.request_bounds import id_of
from schedd.api.services import Services
from schedd.core.auth.rights import EVERY, CallerIdentity, IdentityKind, Role
from schedd.core.ids import BackfillId, Id, RedriveId, RunId
from schedd.core.runs.redrive import RedriveRecord
from schedd.core.runs.run_records import RunRecord
from schedd.core.timers.backfill import BackfillRecord

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
