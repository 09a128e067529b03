"""The selection of dead letters by a call, and its form in the audit log.

namespace, job, fingerprint │ group │ run_ids │ all, until ─▶ LetterFilter ─▶ audit line with count
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.errors import AbortedError, FieldViolation, refuse, wrong
from schedd.api.jobs import stored_jobs
from schedd.api.services import compact
from schedd.core.ids import RunId
from schedd.core.runs.redrive import LetterFilter, RedriveGroup
from schedd.runtime import job_codec
from schedproto.v1 import run_service_pb2 as wire

Choosing: TypeAlias = wire.DiscardDeadLettersRequest | wire.RedriveDeadLettersRequest


def choice_of(
    namespace: str,
    job: str,
    fingerprint: str,
    run_ids: tuple[RunId, ...] = (),
    group: RedriveGroup | None = None,
    until: datetime | None = None,
    at_most: int | None = None,
) -> LetterFilter:
    space = stored_jobs.namespace_of(namespace)
    return LetterFilter(space, job, fingerprint, run_ids, group, until, at_most)


def chosen_by(request: Choosing, run_ids: tuple[RunId, ...] = ()) -> LetterFilter:
    """Return the filter of a call that changes dead letters. Raises InvalidArgument for an
    incomplete group.
    """
    return choice_of(
        request.namespace,
        request.job,
        request.fingerprint,
        run_ids,
        _group_of(request.group) if request.HasField("group") else None,
        _until(request.until) if request.HasField("until") else None,
        request.at_most or None,
    )


def _until(stamp: Timestamp) -> datetime:
    """Return the end of the range, inclusive. JSON and tables show milliseconds only, so a time
    with whole milliseconds includes all of its last one. Else the newest letter would be left out.
    """
    at = job_codec.instant(stamp)
    return at if at.microsecond % 1000 else at.replace(microsecond=at.microsecond + 999)


def _group_of(group: wire.ChosenGroup) -> RedriveGroup:
    remedy = "give the group as ListDeadLetterGroups returns it; nothing was changed"
    refuse([*_missing(group)], "INVALID_FIELD", remedy)
    return RedriveGroup(group.job, group.fingerprint, group.submitted)


def _missing(group: wire.ChosenGroup) -> Iterator[FieldViolation]:
    if not group.fingerprint:
        yield FieldViolation("group.fingerprint", "is missing: give the fingerprint of the group")
    if not group.job and not group.submitted:
        problem = (
            "is missing: give a job's name, or submitted: true for submitted runs without a name"
        )
        yield FieldViolation("group.job", problem)


def check_chosen(request: Choosing) -> None:
    """Raise InvalidArgument unless the selection is explicit and unambiguous."""
    if request.at_most < 0:
        raise wrong(
            "at_most",
            "must not be negative: give the highest number of dead letters to change, or leave"
            " at_most out",
        )
    filtered = request.job or request.fingerprint
    if request.HasField("group"):
        if filtered or request.all:
            raise wrong("group", "can't be combined with job, fingerprint or all: give one of them")
    elif not filtered and not request.all:
        raise wrong(
            "all", "no dead letters are selected: give a job, a fingerprint, a group, or all: true"
        )
    elif filtered and request.all:
        raise wrong("all", "can't be combined with job or fingerprint: give one of them")


def more_than_expected(choice: LetterFilter) -> AbortedError:
    """Return the error for a selection that has grown beyond `at_most`."""
    return AbortedError(
        f"the selection now has more than {choice.at_most:,} dead letters",
        reason="MORE_THAN_EXPECTED",
        remedy="list the dead letters again, then call again; nothing was changed",
    )


def audit_state(choice: LetterFilter) -> dict[str, object]:
    """Return the selection, for the audit log."""
    selection: dict[str, object] = {
        "job": choice.job,
        "fingerprint": choice.fingerprint,
        "runs": [str(one) for one in choice.run_ids],
    }
    if (group := choice.group) is not None:
        chosen = {"job": group.job, "fingerprint": group.fingerprint}
        selection = {"group": chosen | {"submitted": group.submitted}}
    elif not any(selection.values()):
        selection = {"all": True}
    until = {"until": choice.until.isoformat()} if choice.until else {}
    return {"namespace": choice.namespace, **selection, **until}


def counted(what: Mapping[str, object], name: str, count: int) -> str:
    """Return the selection with the number of changed letters, for the audit log."""
    return compact({key: value for key, value in what.items() if value} | {name: count})
