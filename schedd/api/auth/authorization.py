"""Whether a caller may: asked of every call before its function sees it (`policy` says what of).

    admitted    by the method alone, before the request is read: known? of the right kind?
    authorise   by the request: the namespaces that it names, or those of what it names by id

Namespaces don't see each other: what is named by an id and lies in one where the caller may see
nothing is answered as if it weren't there, and what isn't there the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from google.protobuf.message import Message

from schedd.api.auth.policy import POLICY, In, Of, Rule, What
from schedd.api.errors import NotFound, PermissionDenied
from schedd.api.field_bounds import id_of
from schedd.api.services import Services
from schedd.core.ids import BackfillId, RedriveId, RunId
from schedd.core.jobs.rights import EVERY, Identity, IdentityKind, Role

ASK: Final = "ask somebody who is admin for a token that may: `schedctl auth token create`"


def admitted(who: Identity, method: str) -> None:
    """Raise PermissionDenied where somebody may never call this. `method`: its full name."""
    rule = _rule(who, method)
    if IdentityKind.ANYBODY in (rule.kind, who.kind):
        return
    if rule.role is not None and not who.may_somewhere(rule.role):
        where = "all namespaces" if rule.where is None else "the namespace that it is about"
        raise _lacking(who, method, rule.role, where)


async def authorise(services: Services, who: Identity, method: str, request: Message) -> None:
    """Raise PermissionDenied, or NotFound for what they can't know of.

    Costs nothing for who has the role everywhere; else at most one look at the database.
    """
    rule = _rule(who, method)
    if rule.role is None or who.may(rule.role, EVERY):
        return
    if rule.where is None:
        raise _lacking(who, method, rule.role, "all namespaces")
    if isinstance(rule.where, In):
        namespaces = rule.where.of(request)
    else:
        admitted(who, method)
        namespaces = await _of_named(services, who, rule.where, request)
    for namespace in sorted(namespaces):
        if not who.may(rule.role, namespace):
            raise _lacking(who, method, rule.role, _told(namespace))


def _rule(who: Identity, method: str) -> Rule:
    """What the method takes, of who is of its kind."""
    rule = POLICY.get(method)
    if rule is None:
        raise _denied(f"{_short(method)} is open to nobody", "NO_POLICY", "")
    if IdentityKind.ANYBODY not in (rule.kind, who.kind) and rule.kind is not who.kind:
        what = f"{_short(method)} is for the certificate of a {rule.kind.value}"
        raise _denied(f"{what}, and this is {who.actor}", "WRONG_KIND", "")
    return rule


async def _of_named(services: Services, who: Identity, of: Of, request: Message) -> set[str]:
    """The namespaces of what the request names, all of which the caller may see; EVERY where it
    names nothing.
    """
    beside: set[str] = set()
    if of.beside is not None and (not of.ids(request) or getattr(request, of.beside.path)):
        beside = of.beside.of(request)
    ids = {id_of(of.field, text): text for text in of.ids(request)}
    if not ids:
        return beside or {EVERY}
    found = await _NAMESPACES_OF[of.what](services, [*ids])
    for each, text in ids.items():
        if each not in found or not who.may(Role.VIEWER, found[each]):
            word = of.what.value
            raise NotFound(
                f"there is no {word} {text}",
                reason=f"NO_SUCH_{word.upper().replace(' ', '_')}",
                remedy=f"see `schedctl {_LISTS[of.what]}`",
            )
    return set(found.values()) | beside


async def _of_runs(services: Services, runs: Sequence[UUID]) -> dict[UUID, str]:
    records = await services.store.get_runs([RunId(run) for run in runs])
    return {record.run.key.run_id: record.namespace for record in records}


async def _of_letters(services: Services, letters: Sequence[UUID]) -> dict[UUID, str]:
    records = [await services.dead_letters.get(RunId(each)) for each in letters]
    return {each: one.run.namespace for each, one in zip(letters, records, strict=True) if one}


async def _of_backfills(services: Services, backfills: Sequence[UUID]) -> dict[UUID, str]:
    records = [await services.backfills.get(BackfillId(each)) for each in backfills]
    return {each: one.namespace for each, one in zip(backfills, records, strict=True) if one}


async def _of_redrives(services: Services, redrives: Sequence[UUID]) -> dict[UUID, str]:
    records = [await services.dead_letters.redrive(RedriveId(each)) for each in redrives]
    return {each: one.namespace for each, one in zip(redrives, records, strict=True) if one}


_Look: TypeAlias = Callable[[Services, Sequence[UUID]], Awaitable[dict[UUID, str]]]
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


def _lacking(who: Identity, method: str, role: Role, where: str) -> PermissionDenied:
    what = f"{_short(method)} takes the role {role.word} in {where}; {who.actor} hasn't got it"
    return _denied(what, "ROLE_MISSING", ASK)


def _denied(what: str, reason: str, remedy: str) -> PermissionDenied:
    return PermissionDenied(what, reason=reason, remedy=remedy)


def _told(namespace: str) -> str:
    return "all namespaces" if namespace == EVERY else f"namespace {namespace[:130]}"


def _short(method: str) -> str:
    return method.rpartition(".")[2]
