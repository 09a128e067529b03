"""The rows of docs/reliability.md: each fault, what schedd does, what users see, and the tests.

`tests`: functions of this folder, whose figures docs/evidence/fault-tests.md shows. `elsewhere`:
tests of other folders, each run by `make test`. `lacks`: what no test shows, and why. A row with
neither tests nor `elsewhere` must say what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A fault: what schedd does, what users see, and the tests."""

    fault: str
    does: str
    seen: str
    tests: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    lacks: str = ""


GROUPS: Mapping[str, Sequence[Row]] = {
    "Members": (
        Row(
            "A leader or an owner is killed (SIGKILL), at any point of its work.",
            "Another member takes over within TTL + 1 s. Within 1.5 s of the takeover, the new"
            " owner repeats assignments that no worker received.",
            "Running jobs continue. Runs that were due before the takeover start late.",
            (
                "test_leader_killed",
                "test_member_killed_at",
                "test_owner_killed_between_commit_and_push",
            ),
        ),
        Row(
            "An owner is suspended (SIGSTOP) for longer than its lease, for a minute, or inside a"
            " transaction.",
            "Other members take over the owner's shards. When the owner continues, its old epochs"
            " are rejected, so it writes nothing.",
            "Running jobs continue. Runs that were due before the takeover start late.",
            (
                "test_owner_stopped_past_its_lease",
                "test_owner_stopped_inside_a_transaction",
                "test_owner_stopped_for_long",
            ),
        ),
        Row(
            "All members are stopped (SIGTERM), one after another.",
            "Each stopping member hands its shards over to the other members.",
            "Runs start at most 1 s late, except runs that wait for another run of their job.",
            ("test_members_asked_to_end_one_after_another",),
        ),
        Row(
            "A member is cut off from etcd, or its answers from etcd don't arrive.",
            "The member stops firing and dispatching before its lease expires. Other members take"
            " over its shards.",
            "The results of running jobs are still accepted.",
            ("test_member_cut_from_etcd", "test_member_receives_nothing_from_etcd"),
        ),
        Row(
            "A member is cut off from PostgreSQL, while other members aren't.",
            "The member gives up its leadership and its shards. Other members take over within"
            " twice the time of a normal takeover.",
            "Runs that were due before the takeover start late.",
            ("test_member_cut_from_postgres",),
        ),
        Row(
            "A member is cut off from the other members, or from all workers.",
            "Scans of the database find the work whose wake-ups were lost. Other members relay"
            " the runs to workers, or take over the shards.",
            "All runs still reach workers.",
            ("test_member_cut_from_members", "test_member_cut_from_workers"),
        ),
        Row(
            "A member's event loop hangs, while the thread that renews its lease still runs.",
            "The member stops renewing its lease within TTL. Its key in etcd is deleted after"
            " TTL + TTL/3 at the latest.",
            "Other members take over. Runs that were due before the takeover start late.",
            ("test_event_loop_hung",),
        ),
        Row(
            "Two members or two workers have the same name.",
            "The cluster never serves both daemons at once.",
            "The audit log and `schedctl cluster doctor` report the second daemon.",
            ("test_two_daemons_with_one_identity",),
        ),
        Row(
            "A member has no free file descriptors.",
            "The member keeps running. When descriptors are free, the member accepts connections"
            " again.",
            "New connections to the member fail meanwhile. No run or result is lost.",
            ("test_member_without_descriptors",),
            lacks="The test doesn't measure the calls of other users. Runs were up to 3.5 s late.",
        ),
    ),
    "etcd": (
        Row(
            "etcd's leader is killed, or one of three etcd servers is stopped.",
            "schedd's leader stays the leader.",
            "Runs aren't affected.",
            ("test_etcd_leader_killed", "test_etcd_member_stopped"),
        ),
        Row(
            "etcd loses its majority.",
            "Members stop firing before their leases expire. Firing continues when etcd has a"
            " majority again.",
            "No timer fires meanwhile. Afterwards, each job's catch-up policy applies.",
            ("test_etcd_majority_lost",),
        ),
        Row(
            "etcd is compacted while a member's watch is interrupted.",
            "The member lists its keys in etcd again. Its shard map then equals the shard map in"
            " etcd.",
            "No run is lost.",
            ("test_etcd_compacted_under_the_watches",),
            ("tests/conformance/etcd",),
        ),
        Row(
            "A watch of etcd becomes silent.",
            "The member asks etcd for progress. Without an answer, the member closes the watch"
            " and opens another one.",
            "No run is lost.",
            elsewhere=("tests/conformance/etcd/test_follow.py",),
        ),
        Row(
            "etcd's space quota is used up (NOSPACE).",
            "Existing leases and keys are kept. After space is freed, the cluster continues"
            " automatically.",
            "Members that start meanwhile can't join until then.",
            ("test_etcd_full",),
            lacks="No test fills etcd's disk. The test uses up etcd's space quota.",
        ),
        Row(
            "etcd is restored from an old snapshot, and its revisions go back.",
            "Epochs, terms and tokens still grow, because PostgreSQL counts them.",
            "Results of the workers are still accepted.",
            ("test_etcd_restored_without_bumped_revisions",),
        ),
    ),
    "PostgreSQL": (
        Row(
            "PostgreSQL is restarted, or crashes.",
            "No acknowledged change is lost or applied twice. The leader stays the leader.",
            "Runs start late. Calls fail or wait until PostgreSQL answers.",
            ("test_postgres_restarted", "test_postgres_crashed"),
        ),
        Row(
            "A synchronous standby is promoted. Later the replaced primary returns.",
            "No acknowledged change is lost. Owners take their shards again under a new leader."
            " Members disconnect from the replaced primary.",
            "A call whose outcome is unclear reports that its outcome is unknown.",
            ("test_postgres_failed_over", "test_replaced_primary_comes_back"),
            (
                "tests/conformance/postgres/test_shapes.py",
                "tests/integration/api/test_fail_over.py",
                "tests/integration/store/test_servers.py",
            ),
        ),
        Row(
            "PostgreSQL is restored from a backup while members run. Half a minute of changes is"
            " lost.",
            "The cluster stays paused until an operator chooses the start of catch-up. Results"
            " with tokens that the restore lost are rejected as STALE.",
            "Scheduled times before the chosen start don't run again. Each later scheduled time"
            " is accounted for once.",
            ("test_postgres_restored_from_a_backup",),
            ("tests/acceptance/test_restore.py", "tests/integration/test_recovery.py"),
        ),
        Row(
            "PostgreSQL or etcd rejects members: wrong password, missing privilege, missing"
            " table, read-only, no connection left, full disk.",
            "All members keep running. After the correction they become ready automatically.",
            "`/readyz`, `schedctl cluster doctor`, the log and the metric"
            " `schedd_dependency_failure` name the cause. Each due time is accounted for once.",
            ("test_connections_exhausted",),
            ("tests/acceptance/test_rejections.py",),
        ),
        Row(
            "Another session locks the table of runs, for 8 s or for 30 s.",
            "The number of waiting runs is bounded. The leader stays the leader.",
            "Runs start late. No run is lost.",
            ("test_table_locked", "test_table_locked_for_long"),
        ),
        Row(
            "Each answer of PostgreSQL takes 2 s longer.",
            "The leader stays the leader. A member gives up its shards only if PostgreSQL fails"
            " for that member alone.",
            "Runs start late. No run is lost.",
            ("test_postgres_slow",),
        ),
        Row(
            "A long transaction of another session keeps PostgreSQL from removing dead rows.",
            "Members work at their usual speed.",
            "Runs aren't affected.",
            ("test_transaction_pinned",),
        ),
        Row(
            "Connections to PostgreSQL stall, end inside a message, or are reset.",
            "After a COMMIT without an answer, the member reads the rows again before it"
            " continues. No change is applied twice.",
            "Runs start late. No run is lost.",
            ("test_wire_between_members_and_postgres",),
        ),
    ),
    "Workers": (
        Row(
            "A worker is killed, suspended for longer than its lease, or stopped.",
            "The worker's runs start again on another worker, under greater tokens. Late results"
            " are rejected as STALE and recorded in the audit log.",
            "A run of a lost worker starts a second time. With `on_lease_lost: kill`, the first"
            " process has ended by then.",
            (
                "test_worker_killed",
                "test_worker_stopped_past_its_lease",
                "test_worker_stopped_with_what_dies_with_its_lease",
                "test_workers_asked_to_end_one_after_another",
            ),
        ),
        Row(
            "A worker is killed between accepting a run and reporting its result.",
            "The restarted worker sends the results in its spool. A result under an old token is"
            " rejected as STALE.",
            "Each run has exactly one accepted result.",
            ("test_worker_killed_at", "test_worker_restarted_with_results_in_the_spool"),
        ),
        Row(
            "A worker is cut off from all members, or its messages don't arrive.",
            "The worker accepts no new run. After the cut, the worker sends the results of ended"
            " runs. Results under old tokens are STALE.",
            "Runs of the worker start again elsewhere when its lease has expired.",
            ("test_worker_cut_from_members", "test_worker_heartbeats_not_received"),
        ),
        Row(
            "Connections to workers are slow, stall, end inside a frame, or are reset.",
            "Workers and members connect again.",
            "No result counts twice.",
            ("test_wire_between_workers_and_members",),
        ),
        Row(
            "A job tries to kill its worker, writes endless output, ignores SIGTERM, or forks"
            " without end.",
            "The worker's memory doesn't grow. No process of the attempt remains.",
            "Other runs of the same worker aren't affected.",
            elsewhere=(
                "tests/integration/test_worker_shell.py",
                "tests/integration/test_worker_survival.py",
                "tests/integration/test_worker_escapes.py",
                "tests/integration/test_worker_limits.py",
                "tests/unit/workerd/test_sessions.py",
            ),
        ),
    ),
    "Clocks": (
        Row(
            "The wall clock of a host jumps by 5 s or 1 h, or runs at double rate.",
            "Members compare due times with PostgreSQL's clock, so each timer fires once and"
            " never early. The leader stays the leader.",
            "The leader's log reports how far the host's clock is off.",
            ("test_wall_clock_moved", "test_worker_clock_moved"),
        ),
        Row(
            "Clocks change (DST): days of 23 and 25 hours, simulated in minutes.",
            "Each scheduled time runs once. Skipped hours are accounted for.",
            "Runs start on time. After missed hours, each job's catch-up policy applies.",
            ("test_days_on_which_clocks_change", "test_hours_missed_in_which_clocks_change"),
        ),
    ),
    "Disks and power": (
        Row(
            "The disk is full under PostgreSQL, under a worker's spool, or under the log.",
            "No call or result is acknowledged before it is on disk. A worker with a full disk"
            " requests no work.",
            "When there is space again, the cluster continues. You don't need to delete anything.",
            ("test_postgres_disk_full", "test_spool_disk_full", "test_log_disk_full"),
            ("tests/integration/test_worker_disk.py",),
        ),
        Row(
            "A host loses power, or its disk confirms writes that it hasn't stored.",
            "schedd relies on the guarantees of PostgreSQL and etcd.",
            "PostgreSQL and etcd keep acknowledged changes if their disks do.",
            lacks="The test cluster has one host, and runs PostgreSQL without fsync.",
        ),
    ),
    "Load and upgrades": (
        Row(
            "All members are stopped for ten minutes. Many jobs of each catch-up policy miss"
            " scheduled times.",
            "Missed times run once for `latest`, at a limited rate for `all`, and not at all for"
            " `none`. Each missed time is accounted for once.",
            "Runs that are due during the catch-up start on time.",
            ("test_outage_of_ten_minutes",),
        ),
        Row(
            "100,000 jobs are due at one time.",
            "Members keep their leases and shards. If 100,000 jobs are due again,"
            " members need no more memory than the first time.",
            "Each job runs once. Every worker gets runs. Urgent runs stay on time.",
            ("test_herd_due_at_one_instant",),
        ),
        Row(
            "A cluster is upgraded to the next version and back, one process at a time, under"
            " load.",
            "Both versions use the newer schema, and read each other's rows.",
            "Runs start at most 1 s later than runs of shards that didn't change their owner.",
            ("test_rolling_upgrade",),
            ("tests/unit/test_golden.py", "tests/integration/store/test_schema.py"),
        ),
        Row(
            "Faults of many kinds happen in random order for half an hour.",
            "All [invariants](#invariants) hold.",
            "Runs start late during faults. No run is lost.",
            ("faults-long",),
        ),
    ),
    "Hostile clients and networks": (
        Row(
            "A client sends malformed, oversized, deeply nested or compressed messages to every"
            " call and port.",
            "Each call fails with a clear status. Invalid HTTP/2 ends the connection. The memory of"
            " members is bounded.",
            "The p99 latency of other callers at most doubles, or grows by at most 0.1 s.",
            ("test_messages_of_hostile_peers",),
            (
                "tests/unit/rpc",
                "tests/unit/schedkit/test_http_limits.py",
                "tests/unit/web/test_guard.py",
            ),
        ),
        Row(
            "A client opens 1,000 connections to each port without a complete request, or reads"
            " 1,000 streams very slowly.",
            "Members reject connections over the limits, and close half-open connections. Members"
            " release the descriptors and the memory.",
            "The p99 latency of other callers at most doubles, or grows by at most 0.1 s.",
            ("test_connections_of_hostile_peers",),
            ("tests/unit/rpc/test_connection_limit.py",),
            "No test reads live logs slowly, or leaves TLS handshakes unfinished.",
        ),
        Row(
            "Certificates are replaced, or expire.",
            "Daemons use new certificate files without a restart.",
            "No run or result is lost.",
            lacks="The test cluster has no TLS. No test replaces certificates under load.",
        ),
        Row(
            "Bits of a message are flipped in the network.",
            "With TLS, the receiver rejects the data, and the connection is opened again.",
            "No run or result is lost.",
            lacks="No test flips bits. Without TLS, only TCP's checksum detects flipped bits.",
        ),
    ),
}

ROWS: Sequence[Row] = [row for rows in GROUPS.values() for row in rows]
