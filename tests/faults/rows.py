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
        "another member takes over within TTL + 1 s of the last death; running jobs continue;"
        " assignments that no worker received are repeated 1.5 s after the takeover",
        (
            "test_leader_killed",
            "test_member_killed_at",
            "test_owner_killed_between_commit_and_push",
        ),
    ),
    Row(
        "owner stopped (SIGSTOP) past its lease, also inside a transaction, and for a minute",
        "other members take over the owner's shards; when the owner continues, it writes nothing"
        " under its old epochs",
        (
            "test_owner_stopped_past_its_lease",
            "test_owner_stopped_inside_a_transaction",
            "test_owner_stopped_for_long",
        ),
    ),
    Row(
        "members stopped (SIGTERM), one after another",
        "each member hands over its shards; no due run starts over 1 s late, unless the run waits"
        " for another run of its job",
        ("test_members_asked_to_end_one_after_another",),
    ),
    Row(
        "member cut from etcd only, in both directions or inbound",
        "the member stops when the trust in its lease ends; results of its workers are still"
        " accepted",
        ("test_member_cut_from_etcd", "test_member_receives_nothing_from_etcd"),
    ),
    Row(
        "member cut from PostgreSQL only",
        "the member gives up leadership and shards; healthy members take them within twice the"
        " time of a failover",
        ("test_member_cut_from_postgres",),
    ),
    Row(
        "member cut from the other members, or from all workers",
        "scans replace lost wake-ups; the member's runs still reach workers",
        ("test_member_cut_from_members", "test_member_cut_from_workers"),
    ),
    Row(
        "etcd's leader killed; one member stopped; majority lost",
        "schedd's leader doesn't change; without a majority, firing stops when the trust in"
        " leases ends; after healing, every scheduled time is accounted for",
        ("test_etcd_leader_killed", "test_etcd_member_stopped", "test_etcd_majority_lost"),
    ),
    Row(
        "etcd compacted under the watches",
        "after the resync, each member's shard map equals a fresh reading of etcd",
        ("test_etcd_compacted_under_the_watches",),
        ("tests/conformance/etcd",),
    ),
    Row(
        "silent watch of etcd",
        "the member asks etcd for progress; without an answer, the member closes the watch and"
        " opens another watch",
        elsewhere=("tests/conformance/etcd/test_follow.py",),
    ),
    Row(
        "etcd full (NOSPACE)",
        "existing leases and keys are kept; after space is freed, the cluster continues"
        " automatically",
        ("test_etcd_full",),
    ),
    Row(
        "etcd restored from an old snapshot without bumped revisions",
        "members read rows again after unknown outcomes; epochs, terms and tokens still grow",
        ("test_etcd_restored_without_bumped_revisions",),
    ),
    Row(
        "PostgreSQL restarted or crashed",
        "no acknowledged change is lost or applied twice; the leader doesn't change",
        ("test_postgres_restarted", "test_postgres_crashed"),
    ),
    Row(
        "PostgreSQL failed over to a synchronous standby; the replaced primary returns",
        "no acknowledged change is lost; owners take their shards again under one new leader;"
        " members leave the replaced primary; calls with an unclear outcome report it as unknown",
        ("test_postgres_failed_over", "test_replaced_primary_comes_back"),
        (
            "tests/conformance/postgres/test_shapes.py",
            "tests/integration/api/test_fail_over.py",
            "tests/integration/store/test_servers.py",
        ),
    ),
    Row(
        "PostgreSQL restored from a backup under running members, half a minute lost",
        "the cluster is held until an operator chooses the start of catch-up; runs before that"
        " time don't repeat, later runs count once; epochs, terms and tokens grow; results under"
        " lost tokens are STALE",
        ("test_postgres_restored_from_a_backup",),
        ("tests/acceptance/test_restore.py", "tests/integration/test_recovery.py"),
    ),
    Row(
        "table locked, for 8 s and for 30 s",
        "the backlog of runs is bounded and is worked off afterwards; the leader doesn't change",
        ("test_table_locked", "test_table_locked_for_long"),
    ),
    Row(
        "PostgreSQL slow (2 s a round trip), out of connections, xmin pinned",
        "runs are late, but no run is lost; the leader doesn't change: a member steps down only"
        " if PostgreSQL fails for that member alone",
        ("test_postgres_slow", "test_connections_exhausted", "test_transaction_pinned"),
    ),
    Row(
        "worker killed, frozen past its lease, or stopped",
        "the run starts again under a greater token, with `on_lease_lost: kill` after its process"
        " has ended; the late result is STALE and audited",
        (
            "test_worker_killed",
            "test_worker_stopped_past_its_lease",
            "test_worker_stopped_with_what_dies_with_its_lease",
            "test_workers_asked_to_end_one_after_another",
        ),
    ),
    Row(
        "worker killed at any point between accepting a run and reporting its result",
        "each run of the worker has one accepted result; spooled results are delivered, or are"
        " STALE",
        ("test_worker_killed_at",),
    ),
    Row(
        "worker cut from all members, in both directions or outbound",
        "the worker accepts no new run; results of ended runs are delivered late, or are STALE",
        ("test_worker_cut_from_members", "test_worker_heartbeats_not_received"),
    ),
    Row(
        "worker restarted with results in its spool",
        "the results are delivered, or are STALE; exactly one result of each run is accepted",
        ("test_worker_restarted_with_results_in_the_spool",),
    ),
    Row(
        "connections between workers and members slow, stalled, truncated in a frame, reset",
        "streams reconnect; no result counts twice",
        ("test_wire_between_workers_and_members",),
    ),
    Row(
        "connections between members and PostgreSQL stalled, truncated in a message, reset",
        "members read rows again after a COMMIT without an answer; no change is applied twice",
        ("test_wire_between_members_and_postgres",),
    ),
    Row(
        "two daemons with one identity",
        "the cluster never serves both daemons at once; the audit log and the doctor report the"
        " second daemon",
        ("test_two_daemons_with_one_identity",),
    ),
    Row(
        "event loop hung, the keepalive's thread alive",
        "the member stops renewing its lease within TTL; the member's key in etcd is deleted"
        " after TTL + TTL/3 at the latest",
        ("test_event_loop_hung",),
    ),
    Row(
        "wall clock moved: of the leader ± 1 h, ± 5 s, at double rate; of a worker ± 1 h",
        "members use cluster time: every timer fires once, and none fires early; the leader"
        " reports the difference of the clocks and stays leader",
        ("test_wall_clock_moved", "test_worker_clock_moved"),
    ),
    Row(
        "clocks that go forward and back (DST), days of 23 and 25 hours, simulated in minutes",
        "each scheduled time of the oracle runs once and on time, under each policy; no other run"
        " starts; skipped hours are accounted for",
        ("test_days_on_which_clocks_change", "test_hours_missed_in_which_clocks_change"),
    ),
    Row(
        "disk full under PostgreSQL, under the spool, under the log",
        "no call or result is acknowledged before it is on disk; recovery needs no manual deletion",
        ("test_postgres_disk_full", "test_spool_disk_full", "test_log_disk_full"),
        ("tests/integration/test_worker_disk.py",),
        "no test fills etcd's own disk; a test uses up etcd's space quota instead",
    ),
    Row(
        "faults drawn at random, one after another",
        "all invariants of the checker hold",
        ("faults-long",),
    ),
    Row(
        "poison job, endless output, forked children that ignore SIGTERM, fork bomb",
        "the worker's memory stays flat; no process remains after the attempt; the worker's other"
        " slots are unaffected",
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
        "missed times run once for `latest`, at a bounded rate for `all`, never for `none`; each"
        " scheduled time counts once; runs that are due during catch-up are on time",
        ("test_outage_of_ten_minutes",),
    ),
    Row(
        "100,000 jobs due at one time",
        "members keep leases and shards; memory is bounded (a second herd adds none); each job"
        " runs once; every worker gets runs; urgent runs stay on time",
        ("test_herd_due_at_one_instant",),
    ),
    Row(
        "malformed, oversized and deeply nested messages and compressed bombs, to each call and"
        " port, in a seeded order",
        "calls fail with a clear status; broken HTTP/2 ends its connection (gRPC: INTERNAL);"
        " memory is bounded; the p99 of other callers (300+ calls) at most doubles, or grows by"
        " at most 0.1 s",
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
        "the member continues; connections over the limits are rejected, half-open connections"
        " are closed; descriptors and memory are released; the p99 of other callers at most"
        " doubles, or grows by at most 0.1 s",
        ("test_connections_of_hostile_peers",),
        ("tests/unit/rpc/test_connection_limit.py",),
        lacks="no test has slow readers of live logs, or unfinished handshakes at ports with TLS",
    ),
    Row(
        "a member has no free file descriptors",
        "the member keeps running, and accepts connections again when descriptors are free; no run"
        " or result is lost",
        ("test_member_without_descriptors",),
        lacks="the test doesn't show that other callers are unaffected: runs were up to 3.5 s late"
        " meanwhile, and the test doesn't judge p99",
    ),
    Row(
        "rolling upgrade from N-1 to N and back, under load: schema, members, workers, SDK",
        "both versions use the newer schema and read each other's rows; in a handover, runs that"
        " are due each second start within 1 s of other runs due at that time",
        ("test_rolling_upgrade",),
        ("tests/unit/test_golden.py", "tests/integration/store/test_schema.py"),
    ),
    Row(
        "certificates rotated or expired",
        "a rotation of certificates loses no run or result",
        lacks="the test cluster has no TLS, and no test uses certificates under load",
    ),
    Row(
        "bits flipped on the wire",
        "the receiver rejects the data, and the stream reconnects",
        lacks="not tested yet: without TLS, only TCP's checksum detects a flipped bit; under TLS a"
        " flipped bit ends the connection, as a reset does",
    ),
    Row(
        "power lost, disks that lie about fsync, clocks of whole hosts",
        "schedd relies on the guarantees of PostgreSQL and etcd",
        lacks="the test's only host can't lose its power and continue the test; fsync is off in the"
        " test cluster",
    ),
)
