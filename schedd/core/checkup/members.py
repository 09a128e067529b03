"""Members: do they answer each other, do their clocks agree, are they alike."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from schedd.core.checkup.facts import Facts, FailedDependency, MemberFacts
from schedd.core.checkup.finding import CheckSubject, Finding

AREA: Final = "members"
WALL: Final = timedelta(seconds=1)
CLUSTER: Final = timedelta(milliseconds=500)
EXPIRES: Final = timedelta(days=14)


def examine(facts: Facts) -> Iterator[Finding]:
    """Each member, and all of them beside each other."""
    if not any(one.failures for one in facts.members):
        yield from _dependencies("the asked member", facts.failures)
    for one in facts.members:
        yield _answers(one)
        if not one.away:
            yield from _dependencies(one.view.name, one.failures)
            yield _wall(one)
            yield _cluster_time(one)
            yield from _certificate(one, facts)
    if not isinstance(facts.database, str):
        yield from _names(facts)
    yield _takeover(facts)
    yield _alike("versions", {m.name: m.version for m in facts.view.members}, *VERSIONS)
    yield _alike("tzdata", {m.name: m.tzdata for m in facts.view.members}, *ZONES)
    yield _attached(facts)


VERSIONS: Final = ("mixed versions are for upgrades alone", "finish the upgrade")
ZONES: Final = (
    "with other time zone rules they fire at other instants, and a takeover changes them",
    "install the same tzdata on all members",
)


def _answers(one: MemberFacts) -> Finding:
    check = CheckSubject(AREA, "answers", one.view.name)
    if one.away:
        return check.warn(
            one.away,
            "nudges and revokes don't reach it: its work starts late, a pause takes seconds",
            f"see whether members reach {one.view.grpc}",
        )
    if not one.view.database or one.database_away > 5:
        return check.bad(
            f"the database hasn't answered it for {one.database_away:.0f} s",
            "it gives its shards up",
            "see to its way to PostgreSQL",
        )
    if not one.trusted:
        return check.bad(
            "its lease isn't trusted", "it stops firing", "see to its way to etcd, and its load"
        )
    return check.ok("draining" if one.view.draining else "etcd and the database answer it")


def _dependencies(member: str, failures: Sequence[FailedDependency]) -> Iterator[Finding]:
    for failed in failures:
        yield CheckSubject(AREA, failed.dependency, member).bad(
            f"{failed.cause}, since {failed.since:%Y-%m-%dT%H:%M:%SZ}",
            "the member isn't ready: it can't fire, dispatch or accept results until then",
            failed.remedy,
        )


def _wall(one: MemberFacts) -> Finding:
    check = CheckSubject("clocks", "wall clock", one.view.name)
    told = _signed(one.wall_offset)
    if abs(one.wall_offset) > WALL:
        return check.warn(
            told,
            "nothing fires by it, but logs, certificates and jobs read it",
            "start a time service (chrony, systemd-timesyncd) on that host",
        )
    return check.ok(told)


def _cluster_time(one: MemberFacts) -> Finding:
    check = CheckSubject("clocks", "cluster time", one.view.name)
    told = _signed(one.cluster_offset)
    if abs(one.cluster_offset) > CLUSTER:
        return check.bad(
            told,
            "it fires too early (the database holds it back) or too late",
            "see how long the database takes to answer it; restart it if that is short",
        )
    return check.ok(told)


def _certificate(one: MemberFacts, facts: Facts) -> Iterator[Finding]:
    if one.certificate_until is None:
        return
    check = CheckSubject("tls", "certificate", one.view.name)
    left = one.certificate_until - facts.now
    told = f"ends {one.certificate_until:%Y-%m-%d}"
    if left < timedelta(0):
        yield check.bad(told, "nobody can connect to it anew", "renew it, and restart the member")
    elif left < EXPIRES:
        yield check.warn(told, "afterwards nobody can connect to it anew", "renew it in time")
    else:
        yield check.ok(told)


def _names(facts: Facts) -> Iterator[Finding]:
    """Of members and workers: does each have its name for itself."""
    if not facts.twins:
        yield CheckSubject(AREA, "names").ok("nobody was turned away for a name that another has")
    for line in facts.twins:
        at = f" at {line.at:%Y-%m-%dT%H:%M:%SZ}" if line.at else ""
        yield CheckSubject(AREA, "names", line.object.rpartition("/")[2]).warn(
            f"a second {line.object.partition('/')[0]} of this name ({line.source}) was turned"
            f" away{at}",
            "it serves nothing as long as the first is there, and takes its name when that ends",
            "stop one of them, or give it another name; `schedctl audit list` has each",
        )


def _takeover(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "takeover")
    able = [one for one in facts.view.members if one.weight > 0 and not one.draining]
    if len(able) > 1:
        return check.ok(f"{len(able)} members can own shards")
    return check.warn(
        f"{len(able)} member can own shards",
        "when it is lost nothing fires until it is back",
        "run three members on three hosts",
    )


def _alike(check: str, values: dict[str, str], why: str, remedy: str) -> Finding:
    found = sorted(set(values.values()))
    if len(found) <= 1:
        return CheckSubject(AREA, check).ok(found[0] if found else "nobody is there")
    told = ", ".join(f"{name}: {value}" for name, value in sorted(values.items()))
    return CheckSubject(AREA, check).warn(told, why, remedy)


def _attached(facts: Facts) -> Finding:
    check = CheckSubject(AREA, "workers attached")
    without = [one.name for one in facts.view.members if not one.attached]
    if without and len(without) < len(facts.view.members):
        return check.warn(
            f"none to {', '.join(without)}",
            "it is given no shards while others have workers",
            "see whether workers reach it, and its certificate",
        )
    return check.ok("to every member" if not without else "there are none")


def _signed(offset: timedelta) -> str:
    return f"{offset.total_seconds() * 1000:+.0f} ms"
