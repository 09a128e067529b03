"""`schedctl cluster`: what is asked of the member, what is printed, how it exits."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from schedctl.commands.cluster import this_machine
from schedproto.v1 import cluster_service_pb2 as wire
from support.scripted import Refusal

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
UNDO = "to send it runs again: schedctl worker undrain w1"
OK = wire.Finding(area="etcd", check="alarms", severity=wire.Finding.SEVERITY_OK, what="none")
WARN = wire.Finding(
    area="members",
    check="answers",
    subject="m2",
    severity=wire.Finding.SEVERITY_WARN,
    what="timed out",
    why="it is slow",
    remedy="look at it",
)
BAD = wire.Finding(
    area="postgres",
    check="answers",
    severity=wire.Finding.SEVERITY_BAD,
    what="refused",
    why="nothing fires",
    remedy="start it",
)


def checkup(*findings: wire.Finding) -> wire.CheckClusterResponse:
    answer = wire.CheckClusterResponse(findings=findings, member="m1")
    answer.now.GetCurrentTime()
    return answer


@pytest.mark.parametrize(("findings", "code"), [([OK], 0), ([OK, WARN], 0), ([OK, WARN, BAD], 1)])
async def test_the_doctor_exits_1_only_if_something_is_bad(ctl, member, findings, code):
    member.say("CheckCluster", checkup(*findings))
    for form in ("table", "wide", "json", "jsonl"):
        assert (await ctl("cluster", "doctor", "-o", form)).code == code


async def test_the_doctor_prints_reason_and_remedy_below_each_problem(ctl, member):
    member.say("CheckCluster", checkup(OK, WARN, BAD))
    out = (await ctl("cluster", "doctor")).lines
    at = out.index("  ! warn  answers (m2): timed out")
    assert out[at - 1 : at + 3] == [
        "members",
        "  ! warn  answers (m2): timed out",
        "          why: it is slow",
        "          do:  look at it",
    ]
    assert out[1] == "  ✓ ok    alarms: none"
    assert out[-1] == "2 ok, 1 warn, 1 bad"


async def test_the_doctors_json_has_every_key_and_this_machines_clock(ctl, member):
    member.say("CheckCluster", checkup(OK))
    findings = (await ctl("cluster", "doctor", "-o", "json")).data
    assert findings[0] == {
        "area": "etcd",
        "severity": "OK",
        "check": "alarms",
        "subject": None,
        "what": "none",
        "why": None,
        "remedy": None,
    }
    assert findings[-1]["subject"] == "this machine"


@pytest.mark.parametrize(
    ("off", "severity"), [(0.4, "OK"), (-0.4, "OK"), (5, "WARN"), (-5, "WARN")]
)
def test_this_machines_clock_is_compared_with_cluster_time(off, severity):
    finding = this_machine(NOW, NOW + timedelta(seconds=off))
    assert finding.severity == severity
    assert bool(finding.remedy) == (severity != "OK")
    assert finding.what == f"{off * 1000:+.0f} ms"


async def test_a_transfer_prints_both_leaders_and_its_duration(ctl, member):
    moved = wire.TransferLeaderResponse(old_leader="m1", new_leader="m2", old_term=7, new_term=9)
    moved.duration.FromMilliseconds(39)
    member.say("TransferLeader", moved)
    ended = await ctl("cluster", "transfer-leader", "m2", "--reason", "upgrade")
    assert ended.out == "m1 → m2 in 39ms, term 7 → 9\n"
    data = (await ctl("cluster", "transfer-leader", "-o", "json")).data
    assert data == {
        "oldLeader": "m1",
        "newLeader": "m2",
        "oldTerm": 7,
        "newTerm": 9,
        "duration": "0.039s",
    }


@pytest.mark.parametrize("name", ["", " "])
async def test_an_empty_member_is_a_usage_error_and_transfers_nothing(ctl, member, name):
    """A shell variable that isn't set must not transfer leadership to another member."""
    member.say("TransferLeader", wire.TransferLeaderResponse(old_leader="m1", new_leader="m2"))
    ended = await ctl("cluster", "transfer-leader", name)
    assert (ended.code, ended.out) == (2, "")
    assert "the argument MEMBER is empty: give the name of a member" in ended.err
    assert not member.received("TransferLeader")
    assert (await ctl("cluster", "transfer-leader")).code == 0
    [asked] = member.received("TransferLeader")
    assert asked.member == ""


async def test_a_rebalance_prints_moves_and_a_dry_run_with_moves_exits_with_1(ctl, member):
    move = wire.RebalanceClusterResponse.Move(shard=7, new_owner="m2")
    member.say("RebalanceCluster", wire.RebalanceClusterResponse(moves=[move]))
    ended = await ctl("cluster", "rebalance")
    assert (ended.code, ended.lines[1].split()) == (0, ["7", "none", "m2"])
    assert (await ctl("cluster", "rebalance", "--dry-run")).code == 1
    member.say("RebalanceCluster", wire.RebalanceClusterResponse())
    for flags in ([], ["--dry-run"]):
        ended = await ctl("cluster", "rebalance", *flags)
        assert (ended.code, ended.out) == (0, "")
        assert "no shard needs to move" in ended.err


async def test_a_pause_shows_its_actor_time_and_note(ctl, member):
    paused = wire.Cluster(paused=True, paused_by="ops", pause_note="disks")
    paused.paused_at.FromDatetime(NOW)
    member.say("PauseCluster", paused)
    member.say("GetCluster", paused)
    for words in (["pause", "--note", "disks"], ["status"]):
        out = (await ctl("cluster", *words)).out
        assert "PAUSED" in out
        assert "by ops, since 2026-01-05T12:00:00.000Z: disks" in out
    member.say("ResumeCluster", wire.Cluster())
    assert "PAUSED" not in (await ctl("cluster", "resume", "--catch-up")).out


def drained(**facts: object) -> wire.Worker:
    worker = wire.Worker(name="w1", drained_by="ops", drain_reason="disks", **facts)
    worker.drained_at.FromDatetime(NOW)
    return worker


@pytest.mark.parametrize(
    ("refusal_reason", "state"),
    [
        ("", "LIVE"),
        ("spool rejects writes: No space left on device", "LIVE, FULL"),
        ("spool rejects writes: Read-only file system", "LIVE, UNWRITABLE"),
        ("handlers block all 8 event loops of this worker: h", "LIVE, BLOCKED"),
    ],
)
async def test_the_state_of_a_worker_says_why_it_takes_no_new_runs(
    ctl, member, refusal_reason, state
):
    live = wire.Worker(
        name="w1", state=wire.Worker.STATE_LIVE, slots=8, free=8, refusal_reason=refusal_reason
    )
    member.say("ListWorkers", wire.ListWorkersResponse(workers=[live]))
    [row] = (await ctl("worker", "list", "--no-headers")).lines
    assert state == row.removeprefix("w1").partition("  8")[0].strip()


async def test_a_drain_waits_until_the_worker_is_draining_and_runs_nothing(ctl, member):
    live, draining = wire.Worker.STATE_LIVE, wire.Worker.STATE_DRAINING
    member.say("DrainWorker", drained(state=live))
    member.say("WatchWorker", [drained(state=draining, running=2), drained(state=draining)])
    ended = await ctl("worker", "drain", "w1", "--reason", "disks", "--wait")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err.splitlines() == [
        "the worker hasn't reported its runs yet",
        "2 still running",
        "no run in progress",
        "drained w1: no run in progress; to send it runs again: schedctl worker undrain w1",
    ]
    [asked] = member.received("DrainWorker")
    assert asked.reason == "disks"


async def test_a_drain_waits_until_the_results_of_the_worker_are_stored(ctl, member):
    """Otherwise its runs start again if it is stopped now."""
    draining = wire.Worker.STATE_DRAINING
    full = "spool rejects writes: No space left on device"
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LIVE, running=1, unstored_results=1))
    member.say(
        "WatchWorker",
        [
            drained(state=draining, unstored_results=2, refusal_reason=full),
            drained(state=draining, unstored_results=1),
            drained(state=draining),
        ],
    )
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert ended.err.splitlines() == [
        "1 still running; 1 result isn't stored yet",
        f"2 results aren't stored yet: {full}",
        "1 result isn't stored yet",
        "no run in progress",
        "drained w1: no run in progress; to send it runs again: schedctl worker undrain w1",
    ]


async def test_a_drain_does_not_complete_while_no_member_receives_heartbeats(ctl, member):
    """Unknown runs were once shown as 0: stopping the worker then repeated eight runs."""
    live, draining = wire.Worker.STATE_LIVE, wire.Worker.STATE_DRAINING
    member.say("DrainWorker", drained(state=live, running=8))
    stands = (
        drained(state=live, heartbeats_missing=True),
        drained(state=draining, heartbeats_missing=True),
        drained(state=draining, running=8),
        drained(state=draining),
    )
    member.say("WatchWorker", [*stands])
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert ended.code == 0
    assert ended.err.splitlines() == [
        "8 still running",
        "its runs are unknown: no member receives its heartbeats",
        "8 still running",
        "no run in progress",
        "drained w1: no run in progress; to send it runs again: schedctl worker undrain w1",
    ]
    member.say("DrainWorker", drained(state=live, heartbeats_missing=True))
    output = (await ctl("worker", "drain", "w1")).err
    assert "draining w1: its runs are unknown: no member receives its heartbeats;" in output


def at(seconds: int) -> Timestamp:
    return Timestamp(seconds=1_800_000_000 + seconds)


async def test_a_drain_fails_when_the_worker_is_restarted(ctl, member):
    """A killed worker returns within its lease, and its runs start again."""
    draining = wire.Worker.STATE_DRAINING
    older, newer = {"started_at": at(0)}, {"started_at": at(1)}
    first = drained(state=wire.Worker.STATE_LIVE, incarnation="b", running=1, **older)
    gone = drained(state=draining, incarnation="b", heartbeats_missing=True, **older)
    member.say("DrainWorker", first)
    member.say("WatchWorker", [gone, drained(state=draining, incarnation="a", **newer)])
    ended = await ctl("worker", "drain", "w1", "--wait")
    again = "its remaining runs were returned or start again"
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "1 still running",
        "its runs are unknown: no member receives its heartbeats",
        "the worker was restarted",
        f"w1 was restarted before the drain completed: {again}; {UNDO}",
    ]


async def test_a_drain_ignores_an_older_incarnation_with_an_unexpired_lease(ctl, member):
    """A member that learns of the newer incarnation later may still name the older one."""
    draining = wire.Worker.STATE_DRAINING
    now = {"state": draining, "incarnation": "b", "started_at": at(1)}
    before = drained(state=draining, incarnation="a", started_at=at(0), heartbeats_missing=True)
    member.say("DrainWorker", drained(running=1, **now))
    member.say("WatchWorker", [before, drained(**now)])
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert ended.code == 0, ended.err
    assert ended.err.splitlines()[-1].startswith("drained w1: no run in progress")


@pytest.mark.parametrize("state", ["STATE_LIVE", "STATE_DRAINING"])
async def test_a_drain_ends_when_the_worker_is_undrained(ctl, member, state):
    undrained = wire.Worker(name="w1", state=wire.Worker.State.Value(state))
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LIVE, running=1))
    member.say("WatchWorker", [undrained, drained(state=wire.Worker.STATE_DRAINING)])
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "1 still running",
        "the worker was undrained",
        "w1 was undrained before the drain completed: it gets runs again",
    ]


async def test_a_drain_fails_when_the_worker_is_lost(ctl, member):
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LIVE, running=8))
    member.say("WatchWorker", [drained(state=wire.Worker.STATE_LOST, heartbeats_missing=True)])
    for form in ("table", "json"):
        ended = await ctl("worker", "drain", "w1", "--wait", "-o", form)
        assert ended.code == 1
        last = ended.err.splitlines()[-1]
        assert last.startswith(
            "w1 was lost before the drain completed: its remaining runs were returned"
        )
    assert ended.data["state"] == "LOST"


async def test_a_drained_worker_that_was_stopped_is_shown_as_stopped_and_not_as_lost(ctl, member):
    stopped = drained(state=wire.Worker.STATE_STOPPED, heartbeats_missing=True)
    member.say("ListWorkers", wire.ListWorkersResponse(workers=[stopped]))
    assert (await ctl("worker", "list")).out.splitlines()[-1].split()[:2] == ["w1", "STOPPED"]
    member.say("DrainWorker", stopped)
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert (ended.code, member.received("WatchWorker")) == (0, [])
    assert ended.err.startswith("drained w1: the worker isn't running;")
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LIVE, running=8))
    member.say("WatchWorker", [stopped])
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert ended.code == 1
    assert "w1 was stopped before the drain completed" in ended.err


async def test_a_lost_member_has_no_role(ctl, member):
    lost = wire.Member(name="m3", state=wire.Member.STATE_LOST)
    member.say("ListMembers", wire.ListMembersResponse(members=[lost]))
    assert (await ctl("cluster", "members")).out.splitlines()[-1].split()[:3] == ["m3", "–", "LOST"]


async def test_a_drain_of_a_lost_worker_does_not_wait(ctl, member):
    """The worker gets no runs when it registers, and has none to lose."""
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LOST, heartbeats_missing=True))
    ended = await ctl("worker", "drain", "w1", "--wait")
    assert (ended.code, member.received("WatchWorker")) == (0, [])
    assert (
        ended.err.splitlines()[-1]
        == "drained w1: the worker is lost; to send it runs again: schedctl worker undrain w1"
    )
    assert (await ctl("worker", "drain", "w1")).code == 0


async def test_unknown_values_of_a_worker_are_never_shown_as_0(ctl, member):
    worker = wire.Worker(name="w1", state=wire.Worker.STATE_LIVE, slots=16, heartbeats_missing=True)
    member.say("ListWorkers", wire.ListWorkersResponse(workers=[worker]))
    member.say("GetWorker", worker)
    [_, line] = (await ctl("worker", "list")).out.splitlines()
    assert line.split() == ["w1", "LIVE,", "NO", "HEARTBEAT", "16", "–", "–", "–"]
    described = (await ctl("worker", "describe", "w1")).out.splitlines()
    fields = {head.strip(): value.strip() for head, value in (one.split(":") for one in described)}
    assert {fields[head] for head in ("Free", "Running", "Lease age", "Unstored")} == {"–"}
    [found] = (await ctl("worker", "list", "-o", "json")).data
    assert found["heartbeatsMissing"] is True
    assert [found[key] for key in ("free", "running", "unstoredResults", "leaseAge")] == [None] * 4
    received = wire.Worker(name="w1", state=wire.Worker.STATE_LIVE, slots=16)
    member.say("ListWorkers", wire.ListWorkersResponse(workers=[received]))
    [found] = (await ctl("worker", "list", "-o", "json")).data
    assert [found[key] for key in ("free", "running", "unstoredResults")] == [0] * 3


@pytest.mark.slow
async def test_a_long_drain_makes_one_drain_and_one_watch_request(ctl, member):
    """The drain ends later than any poll would have been sent."""
    draining = wire.Worker.STATE_DRAINING
    done = asyncio.Event()
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LIVE, running=1))
    member.say("GetWorker", drained(state=draining, running=1))
    member.say("WatchWorker", [drained(state=draining, running=1), done, drained(state=draining)])
    asyncio.get_running_loop().call_later(1.5, done.set)
    ended = await ctl("worker", "drain", "w1", "--wait", "--timeout", "20")
    assert ended.code == 0, ended.err
    assert [name for name, _ in member.requests] == ["DrainWorker", "WatchWorker"]


async def test_a_description_shows_who_drained_the_worker(ctl, member):
    member.say("DrainWorker", drained(state=wire.Worker.STATE_LIVE, running=1))
    member.say("GetWorker", drained(state=wire.Worker.STATE_DRAINING))
    assert "draining w1: 1 still running" in (await ctl("worker", "drain", "w1")).err
    out = (await ctl("worker", "describe", "w1")).out
    assert "DRAINING" in out
    assert "ops" in out
    member.say("UndrainWorker", wire.Worker(name="w1", state=wire.Worker.STATE_LIVE))
    assert "undrained w1" in (await ctl("worker", "undrain", "w1")).err
    member.say("GetWorker", wire.Worker(name="w1", state=wire.Worker.STATE_LIVE))
    assert "w1 wasn't drained" in (await ctl("worker", "undrain", "w1")).err


async def test_a_status_shows_a_recovery(ctl, member):
    held = wire.Cluster(paused=True, recovering=True, paused_by="schedd", pause_note="it went back")
    held.paused_at.FromDatetime(NOW)
    member.say("GetCluster", held)
    out = (await ctl("cluster", "status")).out
    assert "RECOVERY" in out
    assert "it went back" in out


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ([], wire.ResumeClusterRequest()),
        (["--catch-up"], wire.ResumeClusterRequest(catch_up=True)),
        (["--no-catch-up"], wire.ResumeClusterRequest(catch_up_nothing=True)),
    ],
)
async def test_a_resume_sends_only_the_chosen_catch_up(ctl, member, flags, asked):
    member.say("ResumeCluster", wire.Cluster())
    assert (await ctl("cluster", "resume", *flags)).code == 0
    assert member.received("ResumeCluster") == [asked]


async def test_the_horizon_of_a_resume_is_a_time_or_an_age(ctl, member):
    member.say("ResumeCluster", wire.Cluster())
    assert (await ctl("cluster", "resume", "--catch-up-since", "2026-01-05T11:00:00Z")).code == 0
    before = time.time()
    assert (await ctl("cluster", "resume", "--catch-up-since", "10m")).code == 0
    exact, ago = (one.catch_up_since for one in member.received("ResumeCluster"))
    assert exact.ToJsonString() == "2026-01-05T11:00:00Z"
    assert before - 601 < ago.seconds <= time.time() - 599
    for wrong in (["--catch-up-since", "soon"], ["--catch-up-since", "10m", "--catch-up"]):
        assert (await ctl("cluster", "resume", *wrong)).code == 2


@pytest.mark.parametrize("wrong", ["bogus", "2026-01-05T11:00"])
async def test_a_wrong_horizon_error_names_both_forms(ctl, member, wrong):
    said = (await ctl("cluster", "resume", "--catch-up-since", wrong)).err
    assert "RFC 3339" in said
    assert "or an age, such as 10m" in said


async def test_a_resume_of_an_unpaused_cluster_reports_no_change(ctl, member):
    member.say("ResumeCluster", wire.Cluster())
    for before, said in ((wire.Cluster(paused=True), False), (wire.Cluster(), True)):
        member.say("GetCluster", before)
        for form in ("table", "json"):
            ended = await ctl("cluster", "resume", "-o", form)
            assert ended.code == 0
            assert ("wasn't paused; nothing changed" in ended.err) == said
            assert "paused:" not in ended.out


async def test_a_resume_succeeds_when_the_state_before_is_unknown(ctl, member):
    member.say("ResumeCluster", wire.Cluster())
    member.say("GetCluster", Refusal("UNAVAILABLE", "no answer", "DATABASE_SILENT"))
    ended = await ctl("cluster", "resume")
    assert (ended.code, ended.err) == (0, "")
    assert len(member.received("ResumeCluster")) == 1
