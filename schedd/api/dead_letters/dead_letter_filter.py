"""Which dead letters a call is about, and how the audit has it.

namespace, job, fingerprint │ group │ run_ids │ all, until ─▶ Choice ─▶ what was done with how many
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.errors import Aborted, Violation, refuse, wrong
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
    """What is asked for, in the namespace that is meant."""
    space = stored_jobs.namespace_of(namespace)
    return LetterFilter(space, job, fingerprint, run_ids, group, until, at_most)


def chosen_by(request: Choosing, run_ids: tuple[RunId, ...] = ()) -> LetterFilter:
    """What a call that changes letters is about. Raises InvalidArgument for half a group."""
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
    """The last instant that is meant. JSON and tables cut what is finer than a millisecond, so one
    that was read there is with all of it: else the newest letter that it is of would be left out.
    """
    at = job_codec.instant(stamp)
    return at if at.microsecond % 1000 else at.replace(microsecond=at.microsecond + 999)


def _group_of(group: wire.ChosenGroup) -> RedriveGroup:
    remedy = "give the group as ListDeadLetterGroups tells of it; nothing was done"
    refuse([*_missing(group)], "INVALID_FIELD", remedy)
    return RedriveGroup(group.job, group.fingerprint, group.submitted)


def _missing(group: wire.ChosenGroup) -> Iterator[Violation]:
    if not group.fingerprint:
        yield Violation("group.fingerprint", "is missing")
    if not group.job and not group.submitted:
        problem = "is missing, and submitted isn't set: only submitted runs may have no name"
        yield Violation("group.job", problem)


def check_chosen(request: Choosing) -> None:
    """Nobody means all of them by saying nothing, nor fewer than none."""
    if request.at_most < 0:
        raise wrong("at_most", "is below 0")
    filtered = request.job or request.fingerprint
    if request.HasField("group"):
        if filtered or request.all:
            raise wrong("group", "goes with neither job, fingerprint nor all")
    elif not filtered and not request.all:
        raise wrong("all", "is missing: name a job, a fingerprint, or say that all are meant")
    elif filtered and request.all:
        raise wrong("all", "goes with neither job nor fingerprint")


def more_than_told(choice: LetterFilter) -> Aborted:
    """More are chosen than somebody was told of."""
    return Aborted(
        f"more dead letters are chosen by now than {choice.at_most:,}",
        reason="MORE_THAN_TOLD",
        remedy="look at them again, and call anew; nothing was done",
    )


def told(choice: LetterFilter) -> dict[str, object]:
    """What was chosen, as the audit has it."""
    said: dict[str, object] = {
        "job": choice.job,
        "fingerprint": choice.fingerprint,
        "runs": [str(one) for one in choice.run_ids],
    }
    if (group := choice.group) is not None:
        chosen = {"job": group.job, "fingerprint": group.fingerprint}
        said = {"group": chosen | {"submitted": group.submitted}}
    elif not any(said.values()):
        said = {"all": True}
    until = {"until": choice.until.isoformat()} if choice.until else {}
    return {"namespace": choice.namespace, **said, **until}


def counted(what: Mapping[str, object], name: str, count: int) -> str:
    """What was done with how many, as the audit has it."""
    return compact({key: value for key, value in what.items() if value} | {name: count})
