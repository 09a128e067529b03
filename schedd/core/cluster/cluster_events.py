"""Changes of leader, and losses and returns of members and workers, as values and as text. Pure.

Each event is one row, written by the transaction of the change with its line of the audit log
(`store/cluster/cluster_events.py`). Streams, logs and pages read the rows.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from schedd.core.ids import IncarnationId, TenureId
from schedd.core.runs.model import Incarnation
from schedkit.records import dataclass

LEADER: Final = "cluster/leader"
"""The object name of a change of leader, here and in the audit log."""
LOST_FOR: Final = timedelta(hours=24)
"""Default time for which a lost member or worker stays listed."""
MOST_LOST: Final = 500
"""Maximum number of listed lost members, and of lost workers: the newest losses."""


class EventKind(StrEnum):
    """The kind of change; also the action in the audit log."""

    LEADER_CHANGED = "leader-changed"
    MEMBER_LOST = "member-lost"
    MEMBER_RETURNED = "member-returned"
    WORKER_LOST = "worker-lost"
    WORKER_RETURNED = "worker-returned"
    WORKER_RESTARTED = "worker-restarted"


class LossReason(StrEnum):
    LEASE_EXPIRED = "LEASE_EXPIRED"
    TENURE_ENDED = "TENURE_ENDED"


@dataclass(frozen=True, slots=True)
class ClusterEventRecord:
    """An event. `kind`: an `EventKind`, or the text that a newer version wrote. `detail`: the rest
    of the sentence, such as the former leader.
    """

    kind: str
    object: str
    actor: str
    reason: str = ""
    detail: str = ""
    id: int = 0
    at: datetime | None = None

    @property
    def name(self) -> str:
        return self.object.partition("/")[2]


_TEXT: Final[dict[str, str]] = {
    EventKind.LEADER_CHANGED: "leader changed",
    EventKind.MEMBER_LOST: "member {} lost",
    EventKind.MEMBER_RETURNED: "member {} returned",
    EventKind.WORKER_LOST: "worker {} lost",
    EventKind.WORKER_RETURNED: "worker {} returned",
    EventKind.WORKER_RESTARTED: "worker {} restarted without a goodbye",
}


def text_of(event: ClusterEventRecord) -> str:
    """Return the event as one sentence without a full stop, with its reason in words."""
    template = _TEXT.get(event.kind, f"{{}}: {event.kind.replace('-', ' ')}")
    why = ", ".join(filter(None, (event.reason.lower().replace("_", " "), event.detail)))
    text = template.format(event.name)
    return f"{text}: {why}" if why else text


@dataclass(frozen=True, slots=True)
class LostMember:
    """A member that was lost and hasn't returned."""

    name: str
    tenure: TenureId
    lost_at: datetime
    grpc: str = ""
    http: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Losses:
    """Lost members and workers that haven't returned, newest loss first. Each worker has its
    `lost_at`.
    """

    members: tuple[LostMember, ...] = ()
    workers: tuple[Incarnation, ...] = ()

    def missing(
        self, members: Collection[str], workers: Collection[str], drained: Collection[str]
    ) -> Losses:
        """Return the losses without live members and workers, and without drained workers."""
        there = {*workers, *drained}
        return Losses(
            tuple(one for one in self.members if one.name not in members),
            tuple(one for one in self.workers if one.worker not in there),
        )


NO_LOSSES: Final = Losses()


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """An incarnation that isn't recorded as lost. Its end is reported as a loss only if it was
    `seen`.
    """

    id: IncarnationId
    worker: str
    seen: bool
