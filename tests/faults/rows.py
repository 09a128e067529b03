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
        "a successor within TTL + 1 s of the last death; running work goes on; what was handed out"
        " and came to nobody is handed out anew 1.5 s after the takeover",
        (
            "test_leader_killed",
            "test_member_killed_at",
            "test_owner_killed_between_commit_and_push",
        ),
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
        "each hands over; no run that falls due meanwhile, and waits for none of its own job,"
        " starts later than 1 s",
        ("test_members_asked_to_end_one_after_another",),
    ),
    Row(
        "member cut from etcd alone, both ways or deaf",
        "it stops when its trust ends; its workers' results are still accepted",
        ("test_member_cut_from_etcd", "test_member_hears_no_etcd"),
    ),
    Row(
        "member cut from PostgreSQL alone",
        "it gives up leadership and shards; healthy ones have them within 2F",
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
    Row(
        "watch of etcd that falls silent",
        "asked for progress, given up without an answer, opened anew",
        elsewhere=("tests/conformance/etcd/test_follow.py",),
    ),
    Row(
        "etcd full (NOSPACE)",
        "what lives is kept; once somebody has made room, all goes on by itself",
        ("test_etcd_full",),
    ),
    Row(
        "etcd restored from an old snapshot without bumped revisions",
        "unknown outcomes are read back; epochs, terms and tokens still grow",
        ("test_etcd_restored_without_bumped_revisions",),
    ),
    Row(
        "PostgreSQL restarted or crashed",
        "nothing acknowledged is lost, nothing is done twice; no change of leader",
        ("test_postgres_restarted", "test_postgres_crashed"),
    ),
    Row(
        "PostgreSQL failed over to a synchronous standby; the replaced primary back again, alive",
        "nothing acknowledged is lost; every owner takes anew on the new timeline, under one new"
        " leader; who was replaced is left, whatever it says; a call in doubt is told as unknown",
        ("test_postgres_failed_over", "test_replaced_primary_comes_back"),
        (
            "tests/conformance/postgres/test_shapes.py",
            "tests/integration/api/test_fail_over.py",
            "tests/integration/store/test_servers.py",
        ),
    ),
    Row(
        "PostgreSQL restored from a backup under running members, half a minute lost",
        "held by itself until a person says from when on to catch up; what ran before isn't run"
        " again, what falls due since is accounted for once; epochs, terms and tokens go on above"
        " the lost ones, whose results are STALE",
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
        "late, never lost; no change of leader: whom PostgreSQL fails alone steps down, and where"
        " it fails all, nobody does",
        ("test_postgres_slow", "test_connections_exhausted", "test_transaction_pinned"),
    ),
    Row(
        "worker killed, stopped past its lease, asked to end",
        "run anew under a greater token, what says `on_lease_lost: kill` when it is dead; the late"
        " result is STALE and audited",
        (
            "test_worker_killed",
            "test_worker_stopped_past_its_lease",
            "test_worker_stopped_with_what_dies_with_its_lease",
            "test_workers_asked_to_end_one_after_another",
        ),
    ),
    Row(
        "worker killed at any point between taking a run and telling of its end",
        "one accepted result of each run it had; what was in its spool is delivered or STALE",
        ("test_worker_killed_at",),
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
        "it lets its lease go within TTL; the key is gone TTL + TTL/3 after it hung at the latest",
        ("test_event_loop_hung",),
    ),
    Row(
        "wall clock moved: of the leader ± 1 h, ± 5 s, at double rate; of a worker ± 1 h",
        "cluster time decides: nothing fires early, twice or not at all; the leader says so, and"
        " goes on leading",
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
        "poison job, endless output, forked children that ignore SIGTERM, fork bomb",
        "memory flat; nothing is left after the attempt; other slots unaffected",
        elsewhere=(
            "tests/integration/test_worker_shell.py",
            "tests/integration/test_worker_survival.py",
            "tests/integration/test_worker_escapes.py",
            "tests/integration/test_worker_limits.py",
            "tests/unit/workerd/test_sessions.py",
        ),
    ),
    Row(
        "all members away for ten minutes, under a moved clock: very many jobs of each policy of"
        " catching up are late at once",
        "`latest` runs once, `all` each time and at a bounded rate, `none` never; each instant is"
        " accounted for once; what falls due meanwhile is on time",
        ("test_outage_of_ten_minutes",),
    ),
    Row(
        "100,000 jobs due at one instant",
        "leases and shards kept, memory bounded (the second such herd adds nothing to what the"
        " first left), each of them runs once, no worker starved; what is urgent stays on time,"
        " other runs wait their turn",
        ("test_herd_due_at_one_instant",),
    ),
    Row(
        "malformed, oversized, deeply nested messages and compressed bombs: all, to each call"
        " of each member and at each port, workers' too, in an order by the seed",
        "each has a clear status; broken HTTP/2 of which gRPC's core says INTERNAL ends its"
        " connection; memory is bounded; others' p99, of 300 calls and more, is at most twice that"
        " of the quiet time, or 0.1 s more",
        ("test_messages_of_hostile_peers",),
        ("tests/unit/rpc", "tests/unit/schedkit/test_patience.py", "tests/unit/web/test_guard.py"),
    ),
    Row(
        "1,000 half-open connections at each port, silent or with half a hello (also of TLS, which"
        " isn't built yet: the ports speak in the clear); 1,000 idle connections and 333 idle"
        " streams a member; 1,000 readers at 1 byte a second or never",
        "the process lives; what the limits don't let in is refused at once, what doesn't begin is"
        " ended; descriptors and memory come back; others' p99 as above",
        ("test_connections_of_hostile_peers",),
        ("tests/unit/rpc/test_crowds.py",),
        lacks="slow readers of live logs, and handshakes of TLS: neither is built yet",
    ),
    Row(
        "a member's descriptors run out",
        "it lives, and takes connections again when it can; nothing is lost",
        ("test_member_without_descriptors",),
        lacks="that nobody notices: runs were up to 3.5 s late meanwhile, and p99 isn't judged"
        " there",
    ),
    Row(
        "rolling upgrade from N-1 to N and back, under load: schema, members, workers, SDK",
        "both versions work side by side on the newer schema; for a hand-over no"
        " each-second run starts more than 1 s behind those due with it; what either writes the"
        " other reads",
        ("test_rolling_upgrade",),
        ("tests/unit/test_golden.py", "tests/integration/store/test_schema.py"),
    ),
    Row(
        "certificates rotated or expired",
        "rotation loses nothing",
        lacks="not yet: the world speaks in the clear, and nothing tests certificates under load",
    ),
    Row(
        "bits turned on the wire",
        "refused, and the stream opened anew",
        lacks="not yet: the world speaks in the clear, where TCP's checksum alone tells; under TLS"
        " a turned bit ends a connection, as a reset does",
    ),
    Row(
        "power lost, disks that lie about fsync, clocks of whole hosts",
        "what PostgreSQL and etcd promise",
        lacks="one host can't lose its power and go on testing; fsync is off in the world",
    ),
)
