"""The rows of docs/reliability.md: each fault, the promise under it, and the tests that show it.

`tests`: functions of this folder, whose measurements stand in docs/evidence. `elsewhere`: tests of
other folders, each run by `make test`. A row with neither says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Fault, and the right behaviour under it."""

    fault: str
    behaviour: str
    tests: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    lacks: str = ""


ROWS: Sequence[Row] = (
    Row(
        "leader or owner killed (SIGKILL), at any point of its work",
        "successor within TTL + 1 s of the last death; running work continues; assignments that no"
        " worker received are repeated 1.5 s after the takeover",
        (
            "test_leader_killed",
            "test_member_killed_at",
            "test_owner_killed_between_commit_and_push",
        ),
    ),
    Row(
        "owner stopped (SIGSTOP) past its lease, also inside a transaction, and for a minute",
        "its shards are taken over; when it continues, it writes nothing under its old epochs",
        (
            "test_owner_stopped_past_its_lease",
            "test_owner_stopped_inside_a_transaction",
            "test_owner_stopped_for_long",
        ),
    ),
    Row(
        "members stopped (SIGTERM), one after another",
        "each hands over; no due run starts over 1 s late, unless it waits for another run of its"
        " job",
        ("test_members_asked_to_end_one_after_another",),
    ),
    Row(
        "member cut from etcd only, in both directions or inbound",
        "it stops when its trust ends; its workers' results are still accepted",
        ("test_member_cut_from_etcd", "test_member_receives_nothing_from_etcd"),
    ),
    Row(
        "member cut from PostgreSQL only",
        "it gives up leadership and shards; healthy members have them within twice the time of a"
        " failover",
        ("test_member_cut_from_postgres",),
    ),
    Row(
        "member cut from the other members, or from all workers",
        "scans replace lost wake-ups; its runs still reach workers",
        ("test_member_cut_from_members", "test_member_cut_from_workers"),
    ),
    Row(
        "etcd's leader killed; one member stopped; majority lost",
        "no change of leader; without a majority, firing stops when trust ends; after healing,"
        " every scheduled time is accounted for",
        ("test_etcd_leader_killed", "test_etcd_member_stopped", "test_etcd_majority_lost"),
    ),
    Row(
        "etcd compacted under the watches",
        "after the resync, the shard map equals a fresh list",
        ("test_etcd_compacted_under_the_watches",),
        ("tests/conformance/etcd",),
    ),
    Row(
        "silent watch of etcd",
        "the member requests progress; without an answer, it closes the watch and opens another",
        elsewhere=("tests/conformance/etcd/test_follow.py",),
    ),
    Row(
        "etcd full (NOSPACE)",
        "existing leases and keys are kept; after space is freed, everything continues"
        " automatically",
        ("test_etcd_full",),
    ),
    Row(
        "etcd restored from an old snapshot without bumped revisions",
        "unknown outcomes are read again; epochs, terms and tokens still grow",
        ("test_etcd_restored_without_bumped_revisions",),
    ),
    Row(
        "PostgreSQL restarted or crashed",
        "no acknowledged change is lost or applied twice; no change of leader",
        ("test_postgres_restarted", "test_postgres_crashed"),
    ),
    Row(
        "PostgreSQL failed over to a synchronous standby; the replaced primary returns",
        "no acknowledged change is lost; owners take their shards again, under one new leader;"
        " members leave the replaced primary; a call in doubt is unknown",
        ("test_postgres_failed_over", "test_replaced_primary_comes_back"),
        (
            "tests/conformance/postgres/test_shapes.py",
            "tests/integration/api/test_fail_over.py",
            "tests/integration/store/test_servers.py",
        ),
    ),
    Row(
        "PostgreSQL restored from a backup under running members, half a minute lost",
        "held until an operator chooses the start of catch-up; earlier runs don't repeat, later"
        " count once; epochs, terms and tokens grow; lost ones are STALE",
        ("test_postgres_restored_from_a_backup",),
        ("tests/acceptance/test_restore.py", "tests/integration/test_recovery.py"),
    ),
    Row(
        "table locked, for 8 s and for 30 s",
        "the backlog is bounded and drains; no change of leader",
        ("test_table_locked", "test_table_locked_for_long"),
    ),
    Row(
        "PostgreSQL slow (2 s a round trip), out of connections, xmin pinned",
        "late, never lost; no change of leader: a member steps down only if PostgreSQL fails it"
        " alone, not if it fails all members",
        ("test_postgres_slow", "test_connections_exhausted", "test_transaction_pinned"),
    ),
    Row(
        "worker killed, frozen past its lease, or stopped",
        "the run gets a greater token, with `on_lease_lost: kill` after its process has ended; the"
        " late result is STALE and audited",
        (
            "test_worker_killed",
            "test_worker_stopped_past_its_lease",
            "test_worker_stopped_with_what_dies_with_its_lease",
            "test_workers_asked_to_end_one_after_another",
        ),
    ),
    Row(
        "worker killed at any point between accepting a run and reporting its result",
        "one accepted result of each of its runs; spooled results are delivered or STALE",
        ("test_worker_killed_at",),
    ),
    Row(
        "worker cut from all members, in both directions or outbound",
        "it accepts no new run; finished results are delivered late, or are STALE",
        ("test_worker_cut_from_members", "test_worker_heartbeats_not_received"),
    ),
    Row(
        "worker restarted with results in its spool",
        "they are delivered or STALE; exactly one is accepted",
        ("test_worker_restarted_with_results_in_the_spool",),
    ),
    Row(
        "connections between workers and members slow, stalled, truncated in a frame, reset",
        "streams reconnect; no result counts twice",
        ("test_wire_between_workers_and_members",),
    ),
    Row(
        "connections between members and PostgreSQL stalled, truncated in a message, reset",
        "a COMMIT in doubt is read again; no change is applied twice",
        ("test_wire_between_members_and_postgres",),
    ),
    Row(
        "two daemons with one identity",
        "never served both at once; the operator is informed",
        ("test_two_daemons_with_one_identity",),
    ),
    Row(
        "event loop hung, the keepalive's thread alive",
        "it stops keeping its lease alive within TTL; the key is gone after TTL + TTL/3 at the"
        " latest",
        ("test_event_loop_hung",),
    ),
    Row(
        "wall clock moved: of the leader ± 1 h, ± 5 s, at double rate; of a worker ± 1 h",
        "cluster time decides: nothing fires early, twice or not at all; the leader reports the"
        " difference and stays leader",
        ("test_wall_clock_moved", "test_worker_clock_moved"),
    ),
    Row(
        "clocks that go forward and back (DST), days of 23 and 25 hours, simulated in minutes",
        "each scheduled time of the oracle runs once and on time, under each policy; no other runs;"
        " the gap is accounted for",
        ("test_days_on_which_clocks_change", "test_hours_missed_in_which_clocks_change"),
    ),
    Row(
        "disk full under PostgreSQL, under the spool, under the log",
        "nothing is acknowledged before it is written; recovery needs no manual deletion",
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
        "poison job, endless output, forked children that ignore SIGTERM, fork bomb",
        "memory stays flat; no process remains after the attempt; other slots are unaffected",
        elsewhere=(
            "tests/integration/test_worker_shell.py",
            "tests/integration/test_worker_survival.py",
            "tests/integration/test_worker_escapes.py",
            "tests/integration/test_worker_limits.py",
            "tests/unit/workerd/test_sessions.py",
        ),
    ),
    Row(
        "all members stopped for ten minutes, under a moved clock, with many jobs of each catch-up"
        " policy",
        "`latest` runs once, `all` at a bounded rate, `none` never; each scheduled time counts"
        " once; runs due meanwhile are on time",
        ("test_outage_of_ten_minutes",),
    ),
    Row(
        "100,000 jobs due at one time",
        "leases and shards kept; memory bounded (a second herd adds nothing); each job runs once;"
        " no worker starves; urgent runs stay on time",
        ("test_herd_due_at_one_instant",),
    ),
    Row(
        "malformed, oversized and deeply nested messages and compressed bombs, to each call and"
        " port, in a seeded order",
        "clear status; broken HTTP/2 (gRPC: INTERNAL) ends its connection; memory bounded; others'"
        " p99 (300+ calls) doubles or grows by 0.1 s at most",
        ("test_messages_of_hostile_peers",),
        (
            "tests/unit/rpc",
            "tests/unit/schedkit/test_http_limits.py",
            "tests/unit/web/test_guard.py",
        ),
    ),
    Row(
        "1,000 half-open connections per port (silent, half a hello, TLS hello); per member 1,000"
        " idle connections, 333 idle streams; 1,000 slow readers (1 B/s, none)",
        "the process continues; connections over the limits are rejected, half-open ones closed;"
        " descriptors and memory are released; p99 as above",
        ("test_connections_of_hostile_peers",),
        ("tests/unit/rpc/test_connection_limit.py",),
        lacks="not yet: slow readers of live logs, and handshakes at ports with TLS",
    ),
    Row(
        "a member's descriptors run out",
        "it keeps running, and accepts connections again when it can; nothing is lost",
        ("test_member_without_descriptors",),
        lacks="no effect on others: runs were up to 3.5 s late meanwhile, and p99 isn't judged"
        " there",
    ),
    Row(
        "rolling upgrade from N-1 to N and back, under load: schema, members, workers, SDK",
        "both versions share the newer schema and each other's rows; in a handover, each-second"
        " runs start within 1 s of others due with them",
        ("test_rolling_upgrade",),
        ("tests/unit/test_golden.py", "tests/integration/store/test_schema.py"),
    ),
    Row(
        "certificates rotated or expired",
        "rotation loses nothing",
        lacks="not yet: the test cluster has no TLS, and nothing tests certificates under load",
    ),
    Row(
        "bits flipped on the wire",
        "rejected, and the stream reconnects",
        lacks="not yet: without TLS, only TCP's checksum detects it; under TLS a flipped bit ends a"
        " connection, as a reset does",
    ),
    Row(
        "power lost, disks that lie about fsync, clocks of whole hosts",
        "the guarantees of PostgreSQL and etcd",
        lacks="one host can't lose its power and continue the test; fsync is off in the test"
        " cluster",
    ),
)
