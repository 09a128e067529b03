"""Events of a stream, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from schedclient.values.base import Value
from schedclient.values.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Value):
    """Changes that a stream lost, in words. `before`: only runs scheduled before then that have
    ended meanwhile are affected; None: all runs.
    """

    why: str
    scheduled_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent(Value):
    """A change of leader, or a member or worker that was lost or returned. `kind`: leader-changed,
    member-lost, member-returned, worker-lost, worker-returned or worker-restarted. `object`:
    cluster/leader, member/NAME or worker/NAME. `text`: one sentence.
    """

    at: datetime
    kind: str
    object: str
    text: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent(Value):
    """The current state of a run, a gap, or a change of the cluster. `cursor`: the position after
    it, valid at any member.
    """

    run: Run | None
    gap: Gap | None
    cluster: ClusterEvent | None
    cursor: str
