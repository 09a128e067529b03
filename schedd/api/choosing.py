"""Which dead letters a call is about, and how the audit has it.

namespace, job, fingerprint │ group │ run_ids │ all ─▶ Choice ─▶ what was done with how many
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from schedd.api import stored_jobs
from schedd.api.errors import wrong
from schedd.api.services import compact
from schedd.core.ids import RunId
from schedd.core.redrive import Choice, Group
from schedproto.v1 import run_service_pb2 as wire

Choosing: TypeAlias = wire.DiscardDeadLettersRequest | wire.RedriveDeadLettersRequest


def choice_of(
    namespace: str,
    job: str,
    fingerprint: str,
    run_ids: tuple[RunId, ...] = (),
    group: Group | None = None,
) -> Choice:
    """What is asked for, in the namespace that is meant."""
    return Choice(stored_jobs.namespace_of(namespace), job, fingerprint, run_ids, group)


def group_of(request: Choosing) -> Group | None:
    """The one that is meant, if one is."""
    if not request.HasField("group"):
        return None
    return Group(request.group.job, request.group.fingerprint, request.group.submitted)


def check_chosen(request: Choosing) -> None:
    """Nobody means all of them by saying nothing."""
    filtered = request.job or request.fingerprint
    if request.HasField("group"):
        if filtered or request.all:
            raise wrong("group", "goes with neither job, fingerprint nor all")
    elif not filtered and not request.all:
        raise wrong("all", "is missing: name a job, a fingerprint, or say that all are meant")
    elif filtered and request.all:
        raise wrong("all", "goes with neither job nor fingerprint")


def told(choice: Choice) -> dict[str, object]:
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
    return {"namespace": choice.namespace, **said}


def counted(what: Mapping[str, object], name: str, count: int) -> str:
    """What was done with how many, as the audit has it."""
    return compact({key: value for key, value in what.items() if value} | {name: count})
