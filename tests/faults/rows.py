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
            "Another member takes over within `member_ttl` + 1 s. Within 1.5 s of the"
            " takeover, the new owner sends runs again that no worker received.",
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
            "Other members take over the owner's shards. When the suspended owner continues,"
            " PostgreSQL rejects its writes, because the shards have new epochs.",
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
            "The member stops starting runs before its lease in etcd expires. Other members"
            " take over its shards.",
            "The results of running jobs are still accepted.",
            ("test_member_cut_from_etcd", "test_member_receives_nothing_from_etcd"),
        ),
        Row(
            "One member is cut off from PostgreSQL. The other members aren't.",
            "The member gives up its leadership and its shards. Other members take over within"
            " twice the time of a normal takeover.",
            "Runs that were due before the takeover start late.",
            ("test_member_cut_from_postgres",),
        ),
        Row(
            "A member is cut off from the other members, or from all workers.",
            "Members find new work by regular scans of PostgreSQL. Other members relay the"
            " runs to the workers, or take over the shards of the member.",
            "All runs still reach workers.",
            ("test_member_cut_from_members", "test_member_cut_from_workers"),
        ),
        Row(
            "A member's event loop hangs, so the member does no work. The thread that renews"
            " its lease still runs.",
            "The thread stops renewing the lease within `member_ttl`. The member's key in etcd"
            " is deleted after 4/3 of `member_ttl` at the latest.",
            "Other members take over. Runs that were due before the takeover start late.",
            ("test_event_loop_hung",),
        ),
        Row(
            "Two members or two workers have the same name.",
            "The cluster accepts only one of the two daemons at a time.",
            "The audit log and `schedctl cluster doctor` report the rejected daemon.",
            ("test_two_daemons_with_one_identity",),
        ),
        Row(
            "A member has no free file descriptors.",
            "The member keeps running. When descriptors are free again, the member accepts new"
            " connections.",
            "While descriptors are missing, new connections to the member fail. No run or"
            " result is lost.",
            ("test_member_without_descriptors",),
            lacks="The test doesn't measure how long calls of other users take. Runs were up to"
            " 3.5 s late.",
        ),
    ),
    "etcd": (
        Row(
            "etcd's leader is killed, or one of three etcd servers is stopped.",
            "The leader of the schedd cluster doesn't change.",
            "Runs aren't affected.",
            ("test_etcd_leader_killed", "test_etcd_member_stopped"),
        ),
        Row(
            "etcd loses its majority.",
            "Members stop creating runs before their leases expire. They continue when etcd"
            " has a majority again.",
            "While etcd has no majority, no job starts on schedule. Afterwards, each job's"
            " catch-up policy applies.",
            ("test_etcd_majority_lost",),
        ),
        Row(
            "etcd deletes old revisions (compaction) while a member's watch, its stream of"
            " changes, is interrupted.",
            "The member reads all keys again. So it knows the current owner of each shard.",
            "No run is lost.",
            ("test_etcd_compacted_under_the_watches",),
            ("tests/conformance/etcd",),
        ),
        Row(
            "A watch, the stream of changes from etcd to a member, delivers nothing more.",
            "The member sends a request over the watch. If etcd doesn't answer, the member"
            " closes the watch and opens a new one.",
            "No run is lost.",
            elsewhere=("tests/conformance/etcd/test_follow.py",),
        ),
        Row(
            "etcd's space quota is used up (NOSPACE).",
            "Existing leases and keys are kept. After you have freed space, the cluster"
            " continues automatically.",
            "A member that starts before you have freed space can't join the cluster yet.",
            ("test_etcd_full",),
            lacks="The test uses up etcd's space quota. No test fills the disk of etcd.",
        ),
        Row(
            "etcd is restored from an old snapshot, and its revisions go back.",
            "Fencing still works, because its numbers (epochs, terms and tokens) are stored in"
            " PostgreSQL.",
            "Results that workers send are still accepted.",
            ("test_etcd_restored_without_bumped_revisions",),
        ),
    ),
    "PostgreSQL": (
        Row(
            "PostgreSQL is restarted, or crashes.",
            "No acknowledged change is lost or applied twice. The leader doesn't change.",
            "Runs start late. Calls fail or wait until PostgreSQL answers.",
            ("test_postgres_restarted", "test_postgres_crashed"),
        ),
        Row(
            "A synchronous standby is promoted. Later the replaced primary returns.",
            "No acknowledged change is lost. A new leader is elected, and members repeat the"
            " takeover of their own shards. Members disconnect from the replaced primary.",
            'A call fails with the status "outcome unknown" if schedd can\'t know whether its'
            " change was kept.",
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
            "The cluster stays paused until an operator resumes it. The operator chooses from"
            " when missed scheduled times run. A result of a run that the backup doesn't have"
            " is rejected as STALE.",
            "Scheduled times before the chosen time don't run again. Each later scheduled time"
            " gets exactly one outcome.",
            ("test_postgres_restored_from_a_backup",),
            ("tests/acceptance/test_restore.py", "tests/integration/test_recovery.py"),
        ),
        Row(
            "PostgreSQL or etcd rejects members: wrong password, missing privilege, missing"
            " table, read-only, no connection left, full disk.",
            "All members keep running. After you have removed the cause, the members become"
            " ready automatically.",
            "`/readyz`, `schedctl cluster doctor`, the log and the metric"
            " `schedd_dependency_failure` name the cause. Each due time gets exactly one"
            " outcome.",
            ("test_connections_exhausted",),
            ("tests/acceptance/test_rejections.py",),
        ),
        Row(
            "Another session locks the table of runs, for 8 s or for 30 s.",
            "A member keeps only a limited number of waiting runs in memory. The leader"
            " doesn't change.",
            "Runs start late. No run is lost.",
            ("test_table_locked", "test_table_locked_for_long"),
        ),
        Row(
            "Each answer of PostgreSQL takes 2 s longer.",
            "The leader doesn't change. A member gives up its shards only if PostgreSQL"
            " answers the other members, but not this member.",
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
            "If PostgreSQL doesn't answer a COMMIT, the member reads the changed rows again"
            " before it continues. No change is applied twice.",
            "Runs start late. No run is lost.",
            ("test_wire_between_members_and_postgres",),
        ),
    ),
    "Workers": (
        Row(
            "A worker is killed, suspended for longer than its lease, or stopped.",
            "The worker's runs start again on another worker. Late results of the first worker"
            " are rejected as STALE, and recorded in the audit log.",
            "A run of a lost worker starts a second time. If the job has `on_lease_lost:"
            " kill`, the first process ends before the second start.",
            (
                "test_worker_killed",
                "test_worker_stopped_past_its_lease",
                "test_worker_stopped_with_what_dies_with_its_lease",
                "test_workers_asked_to_end_one_after_another",
            ),
        ),
        Row(
            "A worker is killed between accepting a run and reporting its result.",
            "The restarted worker sends the results in its spool. If a run has started again"
            " on another worker, the result of its first start is rejected as STALE.",
            "Each run has exactly one accepted result.",
            ("test_worker_killed_at", "test_worker_restarted_with_results_in_the_spool"),
        ),
        Row(
            "A worker is cut off from all members, or its messages don't arrive.",
            "While the worker is cut off, it accepts no new run. Later it sends the results of"
            " its ended runs. Results of runs that started again elsewhere are rejected as"
            " STALE.",
            "When the worker's lease has expired, its runs start again on another worker.",
            ("test_worker_cut_from_members", "test_worker_heartbeats_not_received"),
        ),
        Row(
            "Connections between members and workers are slow, stall, are reset, or end in the"
            " middle of a message.",
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
            "Members compare due times with PostgreSQL's clock, so each job runs once, and"
            " never early. The leader doesn't change.",
            "The leader's log reports how far the host's clock is off.",
            ("test_wall_clock_moved", "test_worker_clock_moved"),
        ),
        Row(
            "Clocks change between winter and summer time. The test simulates days of 23 and"
            " 25 hours within minutes.",
            "Each scheduled time runs once. Scheduled times in the skipped hour get an"
            " outcome, too.",
            "Runs start on time. If the cluster was down during the clock change, each job's"
            " catch-up policy applies.",
            ("test_days_on_which_clocks_change", "test_hours_missed_in_which_clocks_change"),
        ),
    ),
    "Disks and power": (
        Row(
            "The disk is full under PostgreSQL, under a worker's spool, or under the log.",
            "No call or result is acknowledged before it is on disk. A worker with a full disk"
            " requests no work.",
            "When the disk has free space again, the cluster continues automatically.",
            ("test_postgres_disk_full", "test_spool_disk_full", "test_log_disk_full"),
            ("tests/integration/test_worker_disk.py",),
        ),
        Row(
            "A host loses power, or its disk confirms writes that it hasn't stored.",
            "schedd has no protection of its own, and relies on PostgreSQL and etcd.",
            "PostgreSQL and etcd keep acknowledged changes if their disks do.",
            lacks="The test cluster has one host, and runs PostgreSQL without fsync.",
        ),
    ),
    "Load and upgrades": (
        Row(
            "All members are stopped for ten minutes. Many jobs miss scheduled times.",
            "The catch-up policy decides: `latest` runs the job once, `all` runs all missed"
            " times at a limited rate, `none` runs nothing. Each missed time gets exactly one"
            " outcome.",
            "Runs that are due during the catch-up start on time.",
            ("test_outage_of_ten_minutes",),
        ),
        Row(
            "100,000 jobs are due at one time.",
            "No member loses its lease or its shards. When the 100,000 jobs are due again,"
            " members need no more memory than before.",
            "Each job runs once. Every worker gets runs. Runs with the priority `high` start"
            " on time.",
            ("test_herd_due_at_one_instant",),
        ),
        Row(
            "A cluster is upgraded to the next version and back, one process at a time, under"
            " load.",
            "Both versions use the database schema of the newer version. Each version reads"
            " the rows that the other version wrote.",
            "A run whose shard changes its owner during the upgrade starts at most 1 s later"
            " than other runs.",
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
            "Members reject connections over their limits, close incomplete connections, and"
            " then release their file descriptors and memory.",
            "The p99 latency of other callers at most doubles, or grows by at most 0.1 s.",
            ("test_connections_of_hostile_peers",),
            ("tests/unit/rpc/test_connection_limit.py",),
            "No test reads live logs slowly, or leaves TLS handshakes unfinished.",
        ),
        Row(
            "Certificates are replaced, also after they have expired.",
            "Members and workers use new certificate files without a restart. With expired ones,"
            " new connections fail.",
            "No run or result is lost. With expired certificates, runs start late.",
            lacks="The test cluster has no TLS. No test replaces certificates under load.",
        ),
        Row(
            "Bits of a message are flipped in the network.",
            "With TLS, the receiver detects the damage, rejects the data, and opens the"
            " connection again.",
            "No run or result is lost.",
            lacks="No test flips bits. Without TLS, only TCP's checksum detects flipped bits.",
        ),
    ),
}

ROWS: Sequence[Row] = [row for rows in GROUPS.values() for row in rows]
