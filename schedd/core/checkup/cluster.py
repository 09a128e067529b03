"""Check the cluster: leader, shards, pause, stray keys, members that share the database."""

from collections.abc import Iterator
from typing import Final

from schedd.core.checkup.facts import Facts, FailedRead
from schedd.core.checkup.finding import CheckSubject, CheckupFinding
from schedd.core.cluster.dependency import Dependency
from schedd.core.cluster.etcd_values import named
from schedd.core.cluster.partition import assign
from schedd.core.ids import SHARDS

AREA: Final = "cluster"


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    if not isinstance(facts.database, FailedRead) and facts.unread is None:
        yield _paused(facts)
        yield _alone(facts)
    if facts.outdated:
        yield _old(facts)
        return
    leader = facts.view.member(facts.view.leader)
    name = leader.name if leader else ""
    yield CheckSubject(AREA, "leader", healthy=f"{name}, term {facts.view.term}").bad_if(
        leader is None,
        "the cluster has no leader",
        "shards of lost members aren't given to other members",
        "check whether members reach etcd and PostgreSQL; an election takes about a second",
    )
    if facts.rows:
        yield from _shards(facts)
    readable = "schedd can read every key under its prefix in etcd"
    yield CheckSubject(AREA, "keys", healthy=readable).warn_if(
        facts.view.unreadable,
        f"keys in etcd that schedd can't read: {named(facts.view.unreadable)}",
        "this member may not know of a member or worker that a key describes",
        "delete these keys from etcd if schedd didn't write them",
    )


def _alone(facts: Facts) -> CheckupFinding:
    check = CheckSubject(AREA, "database", healthy="no other cluster uses this database")
    if facts.foreign is None:
        return check.warn(
            "whether another cluster uses this database is unknown",
            "two clusters that share one database exclude each other's members",
            "see the findings about etcd: this member hasn't read which cluster owns its etcd"
            " prefix",
        )
    return check.bad_if(
        facts.foreign,
        f"members of another etcd or etcd prefix use this database: {', '.join(facts.foreign)}",
        "two clusters share one database: each excludes the other's members, and jobs fire late",
        "stop the members of one cluster, or give that cluster its own database",
    )


def _old(facts: Facts) -> CheckupFinding:
    leader = facts.view.member(facts.view.leader)
    last = f"; last known leader: {leader.name}, term {facts.view.term}" if leader else ""
    failing = [one.since for one in facts.failures if one.dependency == Dependency.ETCD]
    since = f" since {failing[0]:%Y-%m-%dT%H:%M:%SZ}" if failing else ""
    subject = "leader, shards, balance, keys, takeover, losses and the members' versions"
    if facts.trusted:
        return CheckSubject(AREA, "view").bad(
            f"{subject} are unknown{since}: {facts.etcd.unread}{last}",
            "the queried member can't read its keys in etcd: its view of the cluster may be"
            " outdated",
            facts.etcd.unread_remedy or "check the connection from that member to etcd",
        )
    return CheckSubject(AREA, "view").bad(
        f"{subject} are unknown{since}{last}",
        "the lease of the queried member may have expired: its view of the cluster may be outdated",
        _better_informed(facts),
    )


def _better_informed(facts: Facts) -> str:
    """Return what to do: another member is worth a query only if its lease is trusted."""
    trusted = [one.view for one in facts.members if not one.away and one.trusted]
    only_database = isinstance(facts.database, FailedRead) and not facts.etcd.unread
    if trusted:
        cause = (
            "see the findings about PostgreSQL, which a member needs to join"
            if only_database
            else "check the connection from the queried member to etcd"
        )
        return (
            f"{cause}; member {trusted[0].name} has a valid lease: query that member with"
            f" --endpoints {trusted[0].grpc}"
        )
    away = ", then the members that don't answer" if any(m.away for m in facts.members) else ""
    first = "PostgreSQL" if only_database else "etcd"
    return f"no member that answers has a valid lease: check {first}{away}"


def _shards(facts: Facts) -> Iterator[CheckupFinding]:
    live = {member.tenure for member in facts.view.members}
    orphans = [row.id for row in facts.rows if row.owner not in live]
    yield CheckSubject(AREA, "shards", healthy=f"all {SHARDS} shards have a live owner").bad_if(
        orphans,
        f"{len(orphans)} of {SHARDS} shards have no live owner",
        "jobs in these shards don't fire",
        "wait: other members take these shards over within about member_ttl; if they don't, see"
        " the members' logs",
    )
    wanted = assign(facts.view.members)
    moving = [row.id for row in facts.rows if row.owner != wanted.get(row.id)]
    balanced = "every shard is owned by its assigned member"
    yield CheckSubject(AREA, "balance", healthy=balanced).warn_if(
        moving,
        f"{len(moving)} shards aren't owned by their assigned members",
        "the shards are being moved, or an owner doesn't release them",
        "`schedctl cluster rebalance` waits until all shards have moved",
    )


def _paused(facts: Facts) -> CheckupFinding:
    check = CheckSubject(AREA, "pause")
    if facts.pause is None:
        return check.ok("the cluster isn't paused")
    if facts.pause.recovering:
        return check.bad(
            f"RECOVERY: {facts.pause.note}",
            "no job fires and no run starts until you resume the cluster; runs whose records were"
            " lost may run again",
            "follow docs/operations/backup-and-restore.md, then `schedctl cluster resume"
            " --catch-up-since T`",
        )
    note = f": {facts.pause.note}" if facts.pause.note else ""
    return check.warn(
        f"paused by {facts.pause.by} since {facts.pause.began:%Y-%m-%dT%H:%M:%SZ}{note}",
        "no job fires and no run starts",
        "when the reason for the pause is over: `schedctl cluster resume`",
    )
