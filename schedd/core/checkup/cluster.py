"""The cluster as a whole: is it led, is every shard owned, is it paused."""

from collections.abc import Iterator
from typing import Final

from schedd.core.checkup.facts import Facts
from schedd.core.checkup.finding import CheckSubject, Finding
from schedd.core.cluster.etcd_values import named
from schedd.core.cluster.shard_assignment import assign
from schedd.core.ids import SHARDS

AREA: Final = "cluster"


def examine(facts: Facts) -> Iterator[Finding]:
    """Pause, leader, shards, stray keys."""
    if not isinstance(facts.database, str):
        yield _paused(facts)
        yield _alone(facts)
    if not facts.trusted:
        yield _old(facts)
        return
    yield _leader(facts)
    if facts.rows:
        yield _owned(facts)
        yield _balanced(facts)
    check = CheckSubject(AREA, "keys")
    if facts.view.unreadable:
        yield check.warn(
            f"unreadable: {named(facts.view.unreadable)}",
            "a member or worker may be missing from the view",
            "delete what isn't ours from under the prefix",
        )
    else:
        yield check.ok("all that stands under the prefix is ours")


def _alone(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "database")
    if not facts.foreign:
        return check.ok("no member of another etcd prefix uses it")
    return check.bad(
        f"members of another etcd or etcd prefix use this database: {', '.join(facts.foreign)}",
        "two clusters share one database: each fences the other's members, and jobs fire late",
        "stop the members of one of them, or give that cluster a database of its own",
    )


def _old(facts: Facts) -> Finding:
    leader = facts.view.member(facts.view.leader)
    last = f"; last seen: {leader.name} leads in term {facts.view.term}" if leader else ""
    return CheckSubject(AREA, "view").bad(
        f"leader, shards, balance and keys aren't known{last}",
        "the lease of the member that was asked isn't trusted: it sees the cluster as it was",
        "see to its way to etcd, or ask another member (--endpoints)",
    )


def _leader(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "leader")
    leader = facts.view.member(facts.view.leader)
    if leader is None:
        return check.bad(
            "nobody leads",
            "no lost member is fenced, and no shard moves",
            "see whether members reach etcd and PostgreSQL; an election takes a second",
        )
    return check.ok(f"{leader.name}, term {facts.view.term}")


def _owned(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "shards")
    live = {member.tenure for member in facts.view.members}
    orphans = [row.id for row in facts.rows if row.owner not in live]
    if orphans:
        return check.bad(
            f"{len(orphans)} of {SHARDS} have no live owner",
            "nothing of the jobs in them fires",
            "they are taken about a lease's time after a death; if not, see the members' logs",
        )
    return check.ok(f"all {SHARDS} have a live owner")


def _balanced(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "balance")
    wanted = assign(facts.view.members)
    moving = [row.id for row in facts.rows if row.owner != wanted.get(row.id)]
    if moving:
        return check.warn(
            f"{len(moving)} shards aren't where they should be",
            "they are on their way, or their owner doesn't let go of them",
            "`schedctl cluster rebalance` waits until they are there",
        )
    return check.ok("each shard is where it should be")


def _paused(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "pause")
    if facts.pause is None:
        return check.ok("it isn't paused")
    if facts.pause.recovering:
        return check.bad(
            f"RECOVERY: {facts.pause.note}",
            "nothing is fired and nothing starts until a person has looked: what ran in what was"
            " lost may run again",
            "docs/operations/backup-and-restore.md; `schedctl cluster resume --catch-up-since T`",
        )
    note = f": {facts.pause.note}" if facts.pause.note else ""
    return check.warn(
        f"paused by {facts.pause.by} since {facts.pause.began:%Y-%m-%dT%H:%M:%SZ}{note}",
        "nothing is fired and nothing starts",
        "`schedctl cluster resume`",
    )
