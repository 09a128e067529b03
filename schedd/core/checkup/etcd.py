"""etcd: does each endpoint answer, can it write, is there room."""

import re
from collections.abc import Iterator
from typing import Final

from schedd.core.checkup.facts import EtcdEndpoint, Facts
from schedd.core.checkup.finding import CheckSubject, Finding

AREA: Final = "etcd"
MIB: Final = 1024 * 1024
QUOTA: Final = 2048 * MIB
"""etcd's own default; ours may be set higher."""
SLOW: Final = 0.1
"""Seconds. A keepalive that takes a sixth of the lease's time is given up."""
CORRUPTING: Final = re.compile(r"3\.5\.[0-2]$")


def examine(facts: Facts) -> Iterator[Finding]:
    """Endpoints, alarms, versions, size, revisions."""
    endpoints = facts.etcd.endpoints
    there = [one for one in endpoints if not one.away]
    for one in endpoints:
        yield _answers(one, alone=2 * len(there) <= len(endpoints))
    for one in there:
        yield _alarms(one)
        yield _size(one)
    if not there:
        return
    yield _versions(there)
    check = CheckSubject(AREA, "revisions")
    if facts.etcd.went_back is None:
        yield check.ok("revisions have only grown")
    else:
        yield check.warn(
            f"revisions went back at {facts.etcd.went_back:%Y-%m-%dT%H:%M:%SZ}",
            "etcd was restored from a snapshot, or replaced: leases and keys of before are gone",
            "restore with bumped revisions (`etcdutl snapshot restore --bump-revision`)",
        )


def _answers(one: EtcdEndpoint, *, alone: bool) -> Finding:
    check = CheckSubject(AREA, "answers", one.endpoint)
    if one.away and alone:
        return check.bad(
            one.away,
            "without a majority no lease is kept: firing stops when trust ends",
            "start that etcd member; see its log",
        )
    if one.away:
        return check.warn(one.away, "one more lost may stop firing", "start that etcd member")
    if not one.has_leader:
        return check.bad(
            "it has no leader", "it can write nothing", "see to the network between etcd's members"
        )
    if one.took > SLOW:
        return check.warn(
            f"it took {one.took * 1000:.0f} ms to answer",
            "slow disks or a busy host end leases that should live",
            "give etcd a disk of its own; see its metric etcd_disk_wal_fsync_duration_seconds",
        )
    leads = ", leads" if one.leads else ""
    return check.ok(f"version {one.version}{leads}, in {one.took * 1000:.0f} ms")


def _alarms(one: EtcdEndpoint) -> Finding:
    check = CheckSubject(AREA, "alarms", one.endpoint)
    if not one.problems:
        return check.ok("none")
    told = ", ".join(one.problems)
    return check.bad(
        told,
        "with NOSPACE etcd refuses every write: no lease, no election",
        "`etcdctl compact REVISION`, `etcdctl defrag`, then `etcdctl alarm disarm`",
    )


def _size(one: EtcdEndpoint) -> Finding:
    check = CheckSubject(AREA, "size", one.endpoint)
    told = f"{one.size / MIB:.1f} MiB, {one.in_use / MIB:.1f} in use"
    if one.size > 0.75 * QUOTA:
        return check.warn(
            told,
            "at its quota (2 GiB unless set) etcd refuses every write",
            "`etcdctl defrag`, or raise --quota-backend-bytes",
        )
    if one.size > 256 * MIB and one.in_use < one.size / 2:
        return check.warn(told, "more than half of it is empty pages", "`etcdctl defrag`")
    return check.ok(told)


def _versions(there: list[EtcdEndpoint]) -> Finding:
    check = CheckSubject(AREA, "versions")
    versions = sorted({one.version for one in there})
    told = ", ".join(versions)
    if any(CORRUPTING.match(version) for version in versions):
        return check.warn(
            told,
            "3.5.0 to 3.5.2 may corrupt their data when killed",
            "run 3.5.3 or newer, but for development",
        )
    if len(versions) > 1:
        return check.warn(told, "mixed versions are for upgrades alone", "finish the upgrade")
    return check.ok(told)
