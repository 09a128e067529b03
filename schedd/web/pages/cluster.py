"""The cluster: who leads and in which term, who owns which shards, and what people did with it.

/cluster          live
/cluster/doctor   what the doctor finds: it asks every member, so only when asked
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from schedd.web.pages.glance import COLOURS
from schedd.web.pages.page import Action, Asked, Done, Page, Shown
from schedd.web.pages.ring import ring
from schedproto.v1 import cluster_service_pb2 as cluster_pb

AUDIT_READ: Final = 10


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member as a row."""

    name: str
    colour: int
    leads: bool
    state: str
    shards: int
    weight: int
    grpc: str
    http: str
    version: str
    tzdata: str
    database: bool
    attached: bool


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """All that the page shows."""

    cluster: cluster_pb.Cluster
    members: tuple[MemberRow, ...]
    ring: tuple[tuple[int, str], ...]
    moving: int
    """Shards whose owner isn't the one that the leader's map names."""
    done: tuple[cluster_pb.AuditEntry, ...]


async def _read(asked: Asked) -> Shown:
    async with asked.at_once() as all_:
        cluster = all_.call(
            "ClusterService.GetCluster", cluster_pb.GetClusterRequest(), cluster_pb.Cluster
        )
        members = all_.call(
            "ClusterService.ListMembers",
            cluster_pb.ListMembersRequest(),
            cluster_pb.ListMembersResponse,
        )
        shards = all_.call(
            "ClusterService.ListShards",
            cluster_pb.ListShardsRequest(),
            cluster_pb.ListShardsResponse,
        )
        done = all_.read("the audit", asked.audit("cluster", AUDIT_READ))
    rows = tuple(rows_of(members.result().members))
    owned = shards.result().shards
    seen = ClusterSeen(
        cluster=cluster.result(),
        members=rows,
        ring=ring(owned, {row.name: row.colour for row in rows}),
        moving=sum(shard.owner != shard.assigned for shard in owned),
        done=tuple(done.result()),
    )
    return Shown("Cluster", seen)


async def _checked(asked: Asked) -> Shown:
    checked = await asked.call(
        "ClusterService.CheckCluster",
        cluster_pb.CheckClusterRequest(),
        cluster_pb.CheckClusterResponse,
    )
    worst_first = sorted(checked.findings, key=lambda one: -one.severity)
    return Shown("Doctor", tuple(worst_first))


def rows_of(members: Sequence[cluster_pb.Member]) -> Iterable[MemberRow]:
    """The members by name, each with its colour. Pure."""
    for at, member in enumerate(sorted(members, key=lambda member: member.name)):
        yield MemberRow(
            name=member.name,
            colour=at % COLOURS,
            leads=member.role == cluster_pb.Member.ROLE_LEADER,
            state=cluster_pb.Member.State.Name(member.state).removeprefix("STATE_").lower(),
            shards=member.shards,
            weight=member.weight,
            grpc=member.grpc,
            http=member.http,
            version=member.version,
            tzdata=member.tzdata,
            database=member.database,
            attached=member.attached,
        )


async def _pause(asked: Asked) -> Done:
    request = cluster_pb.PauseClusterRequest(note=asked.fields.get("reason", ""))
    await asked.call("ClusterService.PauseCluster", request, cluster_pb.Cluster)
    told = "The cluster is paused: nothing is fired and nothing started."
    return Done(told, asked.link("cluster"))


async def _resume(asked: Asked) -> Done:
    catch_up = asked.fields.get("catch_up") == "yes"
    request = cluster_pb.ResumeClusterRequest(catch_up=catch_up, catch_up_nothing=not catch_up)
    await asked.call("ClusterService.ResumeCluster", request, cluster_pb.Cluster)
    return Done("The cluster goes on.", asked.link("cluster"))


async def _transfer(asked: Asked) -> Done:
    request = cluster_pb.TransferLeaderRequest(
        member=asked.fields.get("member", ""), reason=asked.fields.get("reason", "")
    )
    told = await asked.call(
        "ClusterService.TransferLeader", request, cluster_pb.TransferLeaderResponse
    )
    return Done(f"{told.new_leader} leads, term {told.new_term}.", asked.link("cluster"))


PAGE: Final = Page(
    "/cluster",
    "Cluster",
    "cluster",
    _read,
    actions=(
        Action("/cluster/pause", _pause),
        Action("/cluster/resume", _resume),
        Action("/cluster/transfer-leader", _transfer),
    ),
)
DOCTOR: Final = Page("/cluster/doctor", "Cluster", "doctor", _checked, every=None)
