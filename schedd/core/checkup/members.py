"""Check members: reachability, dependencies, clocks, certificates, names, versions, tzdata."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from schedd.core.checkup.facts import Facts, FailedRead, MemberFacts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding
from schedd.core.cluster.dependency import Dependency, DependencyFailure

AREA: Final = "members"
WALL: Final = timedelta(seconds=1)
CLUSTER: Final = timedelta(milliseconds=500)
EXPIRES: Final = timedelta(days=14)


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    if not any(one.failures for one in facts.members):
        yield from _dependencies("the queried member", facts.failures, trusted=facts.trusted)
    for one in facts.members:
        yield _answers(one)
        if not one.away:
            yield from _dependencies(one.view.name, one.failures, trusted=one.trusted)
            yield from _clocks(one)
            yield from _certificate(one, facts)
    if not isinstance(facts.database, FailedRead) and facts.unread is None:
        yield from _names(facts)
    if facts.outdated:
        return  # the rest is of the view
    yield _takeover(facts)
    yield _alike(
        "versions",
        {member.name: member.version for member in facts.view.members},
        "mixed versions of schedd are supported only during an upgrade",
        "upgrade all members to one version",
    )
    yield _alike(
        "tzdata",
        {member.name: member.tzdata for member in facts.view.members},
        "members with different time zone rules fire the same job at different times",
        "install the same tzdata on all members",
    )
    without = [one.name for one in facts.view.members if not one.attached]
    healthy = "workers are attached to every member" if not without else "no workers"
    yield CheckSubject(AREA, "workers attached", healthy=healthy).warn_if(
        0 < len(without) < len(facts.view.members),
        f"no worker is attached to {', '.join(without)}",
        "these members get no shards while other members have workers",
        "check that workers reach these members, and check the certificates of these members",
    )


def _answers(one: MemberFacts) -> CheckupFinding:
    check = CheckSubject(AREA, "answers", one.view.name)
    if one.away:
        return check.warn(
            one.away,
            "other members can't notify this member of new runs and of pauses: its runs start late,"
            " and a pause takes seconds",
            f"check that other members reach this member at {one.view.grpc}",
        )
    failing = {failed.dependency for failed in one.failures}
    dependencies = " and ".join(sorted(failing))
    away = not one.view.database or one.seconds_since_database > 5
    if Dependency.POSTGRESQL not in failing and away:
        return check.bad(
            f"this member got no answer from PostgreSQL for {one.seconds_since_database:.0f} s",
            "its shards go to members that reach PostgreSQL, if there are any",
            "check the connection from this member to PostgreSQL",
        )
    if not one.trusted:
        return check.bad(
            "the member's lease may have expired",
            "this member stops firing jobs",
            f"correct the failure of {dependencies} that this member reports"
            if failing
            else "check this member's connection to etcd, and the load of its host",
        )
    if failing:
        return check.ok(f"the member answers, but reports a failure of {dependencies}")
    return check.ok("draining" if one.view.draining else "etcd and PostgreSQL are reachable")


CONSEQUENCES: Final[Mapping[str, str]] = {
    Dependency.POSTGRESQL: "the member isn't ready: calls and tasks that need PostgreSQL fail and"
    " are retried; due jobs are caught up afterwards",
    Dependency.ETCD: "the member isn't ready: it keeps its shards while its lease is valid, but"
    " members can't join and shards can't move",
}
WITHOUT_LEASE: Final = (
    "the member isn't ready and fires no jobs, because its lease may have expired; members can't"
    " join and shards can't move"
)


def _dependencies(
    member: str, failures: Sequence[DependencyFailure], *, trusted: bool
) -> Iterator[CheckupFinding]:
    for failed in failures:
        lost = failed.dependency == Dependency.ETCD and not trusted
        yield CheckSubject(AREA, failed.dependency, member).bad(
            f"{failed.cause}, since {failed.since:%Y-%m-%dT%H:%M:%SZ}",
            WITHOUT_LEASE if lost else CONSEQUENCES[failed.dependency],
            failed.remedy,
        )


def _clocks(one: MemberFacts) -> Iterator[CheckupFinding]:
    wall, cluster = (
        f"{offset.total_seconds() * 1000:+.0f} ms"
        for offset in (one.wall_offset, one.cluster_offset)
    )
    yield CheckSubject("clocks", "wall clock", one.view.name, wall).warn_if(
        abs(one.wall_offset) > WALL,
        wall,
        "logs, certificates and programs use this clock; schedules don't depend on it",
        "start a time service (chrony, systemd-timesyncd) on that host",
    )
    yield CheckSubject("clocks", "cluster time", one.view.name, cluster).bad_if(
        abs(one.cluster_offset) > CLUSTER,
        cluster,
        "this member fires jobs late, or creates runs too early (PostgreSQL prevents their start)",
        "check how fast PostgreSQL answers this member; if PostgreSQL is fast, restart the member",
    )


def _certificate(one: MemberFacts, facts: Facts) -> Iterator[CheckupFinding]:
    if one.certificate_expires_at is None:
        return
    left = one.certificate_expires_at - facts.now
    verb = "expired" if left < timedelta(0) else "expires"
    expiry = f"the certificate {verb} on {one.certificate_expires_at:%Y-%m-%d}"
    check = CheckSubject("tls", "certificate", one.view.name, expiry)
    if left < timedelta(0):
        yield check.bad(
            expiry,
            "new connections to this member fail",
            "renew the certificate (`schedctl auth issue member`), and restart the member",
        )
    else:
        yield check.warn_if(
            left < EXPIRES,
            expiry,
            "after this date, new connections to this member fail",
            "renew the certificate before this date (`schedctl auth issue member`)",
        )


def _names(facts: Facts) -> Iterator[CheckupFinding]:
    """Return findings on members and workers that use the name of a running one."""
    if not facts.duplicates:
        yield CheckSubject(AREA, "names").ok("no member or worker used a name that is taken")
    for line in facts.duplicates:
        at = f" at {line.at:%Y-%m-%dT%H:%M:%SZ}" if line.at else ""
        yield CheckSubject(AREA, "names", line.object.rpartition("/")[2]).warn(
            f"a second {line.object.partition('/')[0]} of this name ({line.source}) was rejected"
            f"{at}",
            "the second process does no work while the first one runs, and takes the name when the"
            " first one stops",
            "stop one of the two, or give it another name; `schedctl audit list` shows each"
            " rejection",
        )


def _takeover(facts: Facts) -> CheckupFinding:
    able = [one for one in facts.view.members if one.weight > 0 and not one.draining]
    check = CheckSubject(AREA, "takeover", healthy=f"{len(able)} members can own shards")
    unable = len(facts.view.members) > len(able)
    unsure = isinstance(facts.work, FailedRead) or facts.work.losses.members
    return check.warn_if(
        len(able) < 2,
        "1 member can own shards" if able else "no member can own shards",
        "if this member is lost, no job fires until it returns" if able else "no job fires",
        "check /readyz and the logs of the members that run but can't own shards"
        if unable or unsure
        else "run three members on three hosts",
    )


def _alike(check: str, values: dict[str, str], why: str, remedy: str) -> CheckupFinding:
    found = {*values.values()}
    listed = ", ".join(f"{name}: {value}" for name, value in sorted(values.items()))
    healthy = next(iter(found), "no member is running")
    return CheckSubject(AREA, check, healthy=healthy).warn_if(len(found) > 1, listed, why, remedy)
