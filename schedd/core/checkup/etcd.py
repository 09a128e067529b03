"""Check etcd: answers, alarms, database size, versions, revisions."""

import re
from collections.abc import Iterator
from typing import Final

from schedd.core.checkup.facts import EtcdEndpoint, Facts
from schedd.core.checkup.finding import CheckSubject, CheckupFinding

AREA: Final = "etcd"
MIB: Final = 1024 * 1024
QUOTA: Final = 2048 * MIB
"""The default quota of etcd; the cluster may set it higher."""
SLOW: Final = 0.1
"""Seconds after which an answer is slow. A keepalive times out after a sixth of the TTL."""
CORRUPTING: Final = re.compile(r"3\.5\.[0-2]$")


def examine(facts: Facts) -> Iterator[CheckupFinding]:
    endpoints = facts.etcd.endpoints
    there = [one for one in endpoints if not one.away]
    for one in endpoints:
        yield _answers(one, alone=2 * len(there) <= len(endpoints))
    for one in there:
        yield CheckSubject(AREA, "alarms", one.endpoint, "none").bad_if(
            one.problems,
            ", ".join(one.problems),
            "with the alarm NOSPACE etcd rejects every write: leases expire, and no leader is"
            " elected",
            "free space: `etcdctl compact REVISION`, `etcdctl defrag`, then `etcdctl alarm disarm`",
        )
        yield _size(one)
    if not there:
        return
    yield _versions(there)
    went_back = facts.etcd.went_back
    if went_back is None and facts.etcd.unread:
        return  # the finding about the view says so
    yield CheckSubject(AREA, "revisions", healthy="etcd's revisions have only grown").warn_if(
        went_back,
        f"etcd's revisions went back at {went_back:%Y-%m-%dT%H:%M:%SZ}" if went_back else "",
        "etcd was restored from a snapshot or replaced: newer leases and keys are lost",
        "the next time, restore with bumped revisions (`etcdutl snapshot restore --bump-revision`)",
    )


def _answers(one: EtcdEndpoint, *, alone: bool) -> CheckupFinding:
    check = CheckSubject(AREA, "answers", one.endpoint)
    if one.away and alone:
        return check.bad(
            one.away,
            "without a majority of etcd no lease can be renewed: members stop firing jobs when"
            " their leases expire",
            "start this member of etcd, and read its log",
        )
    if one.away:
        return check.warn(
            one.away,
            "if one more endpoint of etcd fails, jobs may stop firing",
            "start this member of etcd, and read its log",
        )
    if not one.has_leader:
        return check.bad(
            "etcd has no leader",
            "etcd accepts no writes",
            "check the network between the members of etcd",
        )
    if one.took > SLOW:
        return check.warn(
            f"etcd answered slowly: in {one.took * 1000:.0f} ms",
            "if etcd is slow, leases of running members and workers may expire",
            "give etcd its own disk; its metric etcd_disk_wal_fsync_duration_seconds shows the"
            " disk's latency",
        )
    leads = ", leader" if one.leads else ""
    return check.ok(f"version {one.version}{leads}, in {one.took * 1000:.0f} ms")


def _size(one: EtcdEndpoint) -> CheckupFinding:
    size = f"{one.size / MIB:.1f} MiB, {one.in_use / MIB:.1f} in use"
    check = CheckSubject(AREA, "size", one.endpoint, size)
    if one.size > 0.75 * QUOTA:
        return check.warn(
            size,
            "at its quota (default 2 GiB) etcd rejects every write",
            "run `etcdctl defrag`, or raise --quota-backend-bytes",
        )
    return check.warn_if(
        one.size > 256 * MIB and one.in_use < one.size / 2,
        size,
        "more than half of etcd's file is unused",
        "run `etcdctl defrag` to free it",
    )


def _versions(there: list[EtcdEndpoint]) -> CheckupFinding:
    versions = sorted({one.version for one in there})
    named = ", ".join(versions)
    check = CheckSubject(AREA, "versions", healthy=named)
    if any(CORRUPTING.match(version) for version in versions):
        return check.warn(
            named,
            "etcd 3.5.0 to 3.5.2 may corrupt its data when it is killed",
            "upgrade etcd to 3.5.3 or newer",
        )
    return check.warn_if(
        len(versions) > 1,
        named,
        "mixed versions of etcd are supported only during an upgrade",
        "upgrade all members of etcd to one version",
    )
