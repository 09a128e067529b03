"""The rows of docs/reliability.md: each fault that was promised to be borne, and who shows it.

`tests`: functions of this folder, whose measurements stand in docs/evidence. `elsewhere`: tests of
other folders, each run by `make test`. A row with neither says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One fault and the right behaviour under it."""

    fault: str
    behaviour: str
    tests: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    lacks: str = ""


ROWS: Sequence[Row] = (
    Row(
        "leader or owner killed (SIGKILL), at any point of its work",
        "a successor within TTL + 1 s; running work goes on",
        ("test_leader_killed", "test_member_killed_at"),
    ),
    Row(
        "owner stopped (SIGSTOP) past its lease, also with a transaction open, for a minute too",
        "its shards are taken over meanwhile; awake, it writes nothing of its old epochs",
        (
            "test_owner_stopped_past_its_lease",
            "test_owner_stopped_inside_a_transaction",
            "test_owner_stopped_for_long",
        ),
    ),
    Row(
        "members asked to end (SIGTERM), one after another",
        "each hands over; no run is later than 1 s",
        ("test_members_asked_to_end_one_after_another",),
    ),
    Row(
        "member cut from etcd alone, both ways or deaf",
        "it stops when its trust ends; its workers' results are still accepted",
        ("test_member_cut_from_etcd", "test_member_hears_no_etcd"),
    ),
    Row(
        "member cut from PostgreSQL alone",
        "it gives up leadership and shards; a healthy one has them within 2F",
        ("test_member_cut_from_postgres",),
    ),
    Row(
        "member cut from the other members, or from all workers",
        "scans do what nudges can't; its work reaches workers all the same",
        ("test_member_cut_from_members", "test_member_cut_from_workers"),
    ),
    Row(
        "etcd's leader killed; one member stopped; majority lost",
        "no change of leader; without a majority firing stops at the end of trust, and all is"
        " accounted for after healing",
        ("test_etcd_leader_killed", "test_etcd_member_stopped", "test_etcd_majority_lost"),
    ),
    Row(
        "etcd compacted under the watches",
        "the map equals a fresh list after resync",
        ("test_etcd_compacted_under_the_watches",),
        ("tests/conformance/etcd",),
    ),
    Row("etcd full (NOSPACE)", "what lives is kept; heals without help", ("test_etcd_full",)),
    Row(
        "etcd restored from an old snapshot without bumped revisions",
        "unknown outcomes are read back; epochs, terms and tokens still grow",
        ("test_etcd_restored_without_bumped_revisions",),
    ),
    Row(
        "PostgreSQL restarted or crashed",
        "nothing acknowledged is lost, nothing is done twice",
        ("test_postgres_restarted", "test_postgres_crashed"),
    ),
    Row(
        "table locked, for 8 s and for 30 s",
        "the backlog is bounded and drains",
        ("test_table_locked", "test_table_locked_for_long"),
    ),
    Row(
        "PostgreSQL slow (2 s a round trip), out of connections, xmin pinned",
        "late, never lost; no flapping of the leader",
        ("test_postgres_slow", "test_connections_exhausted", "test_transaction_pinned"),
    ),
    Row(
        "worker killed, stopped past its lease, asked to end",
        "run anew under a greater token; the late result is STALE and audited",
        (
            "test_worker_killed",
            "test_worker_stopped_past_its_lease",
            "test_workers_asked_to_end_one_after_another",
        ),
    ),
    Row(
        "worker cut from all members, both ways or unheard",
        "it takes nothing new; what it finished is delivered late, or STALE",
        ("test_worker_cut_from_members", "test_worker_not_heard"),
    ),
    Row(
        "worker restarted with results in its spool",
        "they are delivered or STALE; exactly one is accepted",
        ("test_worker_restarted_with_results_in_the_spool",),
    ),
    Row(
        "wire between workers and members slow, stalled, cut off in mid-frame, reset",
        "streams come back; nothing comes twice",
        ("test_wire_between_workers_and_members",),
    ),
    Row(
        "wire between members and PostgreSQL stalled, cut off in mid-message, reset",
        "what was on its way to COMMIT is read back; nothing is done twice",
        ("test_wire_between_members_and_postgres",),
    ),
    Row(
        "two daemons with one identity",
        "never both served; the operator is told",
        ("test_two_daemons_with_one_identity",),
    ),
    Row(
        "event loop hung, the keepalive's thread alive",
        "the lease is lost within TTL",
        ("test_event_loop_hung",),
    ),
    Row(
        "wall clock moved: ± 1 h, 5 s ahead, at double rate",
        "cluster time decides: nothing fires early, twice or not at all",
        ("test_wall_clock_moved", "test_worker_clock_moved"),
    ),
    Row(
        "clocks that go forward and back (DST), days of 23 and 25 hours, lived through in minutes",
        "each instant that the oracle has runs on time and once, under each policy; no other does;"
        " hours leapt over (the gap) are accounted for",
        ("test_days_on_which_clocks_change", "test_hours_missed_in_which_clocks_change"),
    ),
    Row(
        "disk full under PostgreSQL, under the spool, under the log",
        "nothing is acknowledged that wasn't written; heals without deletion by hand",
        ("test_postgres_disk_full", "test_spool_disk_full", "test_log_disk_full"),
        ("tests/integration/test_worker_disk.py",),
        "etcd's own disk: its quota stands in for it",
    ),
    Row(
        "faults drawn at random, one after another",
        "all invariants",
        ("faults-long",),
    ),
    Row(
        "poison job, endless output, forked children that ignore SIGTERM",
        "memory flat; nothing is left after the attempt; other slots unaffected",
        elsewhere=(
            "tests/integration/test_worker_shell.py",
            "tests/integration/test_worker_survival.py",
        ),
    ),
    Row(
        "100,000 jobs due at one instant",
        "lease kept, memory bounded",
        lacks="belongs to the benchmarks",
    ),
    Row(
        "malformed and oversized messages, half-open handshakes, idle streams",
        "clear status, process alive",
        lacks="belongs to the tests of security",
    ),
    Row(
        "rolling upgrade N-1 to N",
        "all S",
        lacks="there is no release N-1 yet",
    ),
    Row(
        "fail-over of PostgreSQL, restore from a backup",
        "every owner takes anew; recovery mode",
        lacks="one PostgreSQL on this host; the timeline's rules are tested in tests/integration",
    ),
    Row(
        "certificates rotated or expired",
        "rotation loses nothing",
        lacks="the world speaks in the clear",
    ),
    Row(
        "bits turned on the wire",
        "refused, and the stream opened anew",
        lacks="the world speaks in the clear, where TCP's checksum alone tells; under TLS a turned"
        " bit ends a connection, as a reset does",
    ),
    Row(
        "power lost, disks that lie about fsync, clocks of whole hosts",
        "what PostgreSQL and etcd promise",
        lacks="one host can't lose its power and go on testing; fsync is off in the world",
    ),
)
