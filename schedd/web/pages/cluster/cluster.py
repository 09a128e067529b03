"""The page of the cluster: leader and term, members, shards by owner, recent actions.

/cluster          live
/cluster/doctor   findings of the doctor; not live, because it calls every member
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import cos, pi, sin
from typing import Any, Final

from schedd.api.cluster import cluster_changes
from schedd.core.ids import SHARDS
from schedd.web import formatting, http_auth
from schedd.web.pages.cluster.overview import COLOURS
from schedd.web.pages.page import Action, Done, Page, PageRequest, Shown, taking
from schedkit.records import dataclass
from schedkit.sources import actor_with_token
from schedproto.v1 import cluster_service_pb2 as cluster_pb

# The shards as a ring: each a part of a circle, in the color of its owner. Pure.

SIZE: Final = 100.0
"""Width and height."""
INNER: Final = 36.0
OUTER: Final = 48.0
FILLED: Final = 0.86
"""The part of a shard's angle that is filled; the rest is a gap."""

NO_OWNER: Final = -1


def ring(
    shards: Iterable[cluster_pb.Shard], colours: Mapping[str, int]
) -> tuple[tuple[int, str], ...]:
    """Return color of an owner → SVG path over its shards; shard 0 is at the top."""
    paths: dict[int, list[str]] = {}
    for shard in shards:
        paths.setdefault(colours.get(shard.owner, NO_OWNER), []).append(_wedge(shard.shard))
    return tuple((colour, "".join(wedges)) for colour, wedges in sorted(paths.items()))


def _wedge(number: int) -> str:
    begin = 2 * pi * number / SHARDS
    end = 2 * pi * (number + FILLED) / SHARDS
    return (
        f"M{_point(begin, OUTER)}A{OUTER:g} {OUTER:g} 0 0 1 {_point(end, OUTER)}"
        f"L{_point(end, INNER)}A{INNER:g} {INNER:g} 0 0 0 {_point(begin, INNER)}z"
    )


def _point(angle: float, radius: float) -> str:
    return f"{SIZE / 2 + radius * sin(angle):.2f} {SIZE / 2 - radius * cos(angle):.2f}"


AUDIT_READ: Final = 10


@dataclass(frozen=True, slots=True)
class MemberRow:
    member: cluster_pb.Member
    colour: int
    state: str

    @property
    def leads(self) -> bool:
        return self.member.role == cluster_pb.Member.ROLE_LEADER


@dataclass(frozen=True, slots=True)
class Deed:
    """An action on the cluster; `detail`: its values, or why it was rejected."""

    action: str
    outcome: str
    actor: str
    detail: str
    at: datetime


async def _read(asked: PageRequest) -> Shown:
    async with asked.at_once() as all_:
        cluster = all_.call(cluster_pb.GetClusterRequest(), cluster_pb.Cluster)
        members = all_.call(cluster_pb.ListMembersRequest(), cluster_pb.ListMembersResponse)
        shards = all_.call(cluster_pb.ListShardsRequest(), cluster_pb.ListShardsResponse)
        whole = all_.read("the audit log", asked.audit("cluster", AUDIT_READ))
        led = all_.read("leader transfers", asked.audit(cluster_changes.LEADER, AUDIT_READ))
    rows = tuple(rows_of(members.result().members))
    owned = shards.result().shards
    seen = {
        "cluster": cluster.result(),
        "members": rows,
        "ring": ring(owned, {row.member.name: row.colour for row in rows}),
        "moving": sum(shard.owner != shard.assigned for shard in owned),
        "done": deeds([*whole.result(), *led.result()]),
    }
    return Shown("Cluster", seen)


async def _checked(asked: PageRequest) -> Shown:
    checked = await asked.call(cluster_pb.CheckClusterRequest(), cluster_pb.CheckClusterResponse)
    worst_first = sorted(checked.findings, key=lambda one: -one.severity)
    return Shown("Doctor", tuple(worst_first))


def rows_of(members: Sequence[cluster_pb.Member]) -> Iterable[MemberRow]:
    """Yield the members by name, each with its color. Pure."""
    for at, member in enumerate(sorted(members, key=lambda member: member.name)):
        state = cluster_pb.Member.State.Name(member.state).removeprefix("STATE_").lower()
        yield MemberRow(member, at % COLOURS, state)


def deeds(entries: Iterable[cluster_pb.AuditEntry]) -> list[Deed]:
    """Return the newest AUDIT_READ of these. Pure."""
    newest = sorted(entries, key=lambda one: (one.at.seconds, one.at.nanos), reverse=True)
    return [
        Deed(
            action=one.action.replace("-", " "),
            outcome=one.outcome,
            actor=actor_with_token(one.actor, one.source),
            detail=" · ".join(filter(None, (refusal(one.reason), in_words(one.after)))),
            at=formatting.instant(one.at),
        )
        for one in newest[:AUDIT_READ]
    ]


def refusal(reason: str) -> str:
    return reason.lower().replace("_", " ")


# The change in an audit entry, in words. Pure.
#
#     {"paused":true,"by":"user/ann","note":"disks"}   ─▶ note: disks
#     {"leader":"m2","term":8,"reason":"upgrade"}      ─▶ leader: m2 · term: 8 · reason: upgrade
#
# Empty and false values are left out, and so are those that the action's name implies.

SAID: Final = frozenset({"paused", "by", "state"})
"""Implied by the action and its actor."""
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def in_words(change: str) -> str:
    """Return the `after` of an entry in words; unchanged if it isn't a JSON object."""
    try:
        values = json.loads(change)
    except (ValueError, RecursionError):
        return change
    return " · ".join(_words(values)) if isinstance(values, dict) else change


def _words(values: dict[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        name = _HUMP.sub(" ", key).replace("_", " ").lower()
        if value in (None, "", False, [], {}) or key in SAID:
            continue
        if value is True:
            yield name
        else:
            yield f"{name}: {value if isinstance(value, str) else _plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@taking("reason")
async def _pause(asked: PageRequest) -> Done:
    request = cluster_pb.PauseClusterRequest(note=asked.fields.get("reason", ""))
    await asked.call(request, cluster_pb.Cluster)
    message = "The cluster is paused: no jobs fire and no runs start."
    return Done(message, asked.link("cluster"))


@taking("catch_up")
async def _resume(asked: PageRequest) -> Done:
    catch_up = asked.fields.get("catch_up") == "yes"
    request = cluster_pb.ResumeClusterRequest(catch_up=catch_up, catch_up_nothing=not catch_up)
    await asked.call(request, cluster_pb.Cluster)
    return Done("The cluster was resumed.", asked.link("cluster"))


@taking("member", "reason")
async def _transfer(asked: PageRequest) -> Done:
    request = cluster_pb.TransferLeaderRequest(
        member=asked.fields.get("member", ""), reason=asked.fields.get("reason", "")
    )
    moved = await asked.call(request, cluster_pb.TransferLeaderResponse)
    return Done(f"{moved.new_leader} is the leader, term {moved.new_term}.", asked.link("cluster"))


PAGE: Final = Page(
    "/cluster",
    "Cluster",
    "cluster",
    _read,
    tells_troubles=True,
    actions=(
        Action("/cluster/pause", _pause),
        Action("/cluster/resume", _resume),
        Action("/cluster/transfer-leader", _transfer),
    ),
)
DOCTOR: Final = Page(http_auth.DOCTOR, "Cluster", "doctor", _checked, every=None, by_turns=False)
