"""Pause and resume of the whole cluster, on a real database."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from schedd.api.errors import FailedPreconditionError, InvalidArgumentError, OutcomeUnknownError
from schedd.cluster.leader.recovery import recover
from schedd.core.runs.lifecycle import State
from schedd.store.cluster.recovery import RecoveryStore
from schedproto.v1 import cluster_service_pb2 as wire
from schedproto.v1 import common_pb2, job_pb2, job_service_pb2, run_service_pb2
from support.store import draft


async def running(api, name="j"):
    """Return a run that was dispatched and may still start."""
    shell = job_pb2.ShellAction(argv=["true"])
    made = job_pb2.Job(name=name, on_demand=True, shell=shell)
    await api("CreateJob", job_service_pb2.CreateJobRequest(job=made))
    await api("TriggerJob", job_service_pb2.TriggerJobRequest(job=name))
    [member] = api.world.members
    [run] = await member.store.owner.live_runs(sorted(member.epochs), [State.PENDING])
    [handed] = await member.assigned(draft(run))
    return handed


async def test_a_pause_is_shown_by_status_and_audited_with_before_and_after(api):
    paused = await api("PauseCluster", wire.PauseClusterRequest(note="upgrade", request_id="r1"))
    assert (paused.paused, paused.paused_by, paused.pause_note) == (True, "tester", "upgrade")
    assert paused.paused_at.seconds
    seen = await api("GetCluster", wire.GetClusterRequest())
    assert (seen.paused, seen.paused_at) == (True, paused.paused_at)

    resumed = await api("ResumeCluster", wire.ResumeClusterRequest())
    assert (resumed.paused, resumed.paused_by, resumed.HasField("paused_at")) == (False, "", False)
    assert api.nudged.cluster == 2, "the owners receive both"

    listed = await api("ListAudit", wire.ListAuditRequest(object="cluster"))
    second, first = listed.entries
    assert (first.actor, first.action, first.outcome) == ("tester", "pause", "ok")
    assert first.source == "test request:r1"
    assert json.loads(first.before) == {"paused": False}
    assert json.loads(first.after) == {"paused": True, "by": "tester", "note": "upgrade"}
    assert (second.action, json.loads(second.before)) == ("resume", json.loads(first.after))
    assert json.loads(second.after) == {"paused": False, "catchUp": False}


async def test_a_cluster_pause_revokes_attempts_of_every_job_that_may_still_start(api):
    out = await running(api)
    await api("PauseCluster", wire.PauseClusterRequest())
    assert api.lines.revoked == [out.key.run_id]


async def test_a_pause_revokes_assignments_that_just_expired_by_the_members_clock(api):
    """P3.8: its worker judges by a clock of its own, which may be a little behind."""
    out = await running(api)
    api.clock.now = lambda: out.start_by + timedelta(seconds=0.1)
    await api("PauseCluster", wire.PauseClusterRequest())
    assert api.lines.revoked == [out.key.run_id]


async def test_a_pause_that_times_out_reports_an_unknown_outcome(api):
    await running(api)

    async def never(_runs):

        await asyncio.Event().wait()

    api.lines.revoke = never
    with pytest.raises(OutcomeUnknownError):
        await api("PauseCluster", wire.PauseClusterRequest(), deadline=0.05)
    assert (await api("GetCluster", wire.GetClusterRequest())).paused, "it is paused all the same"


async def test_the_explanation_of_a_waiting_run_names_the_pause_and_its_remedy(api):
    await api("PauseCluster", wire.PauseClusterRequest(note="upgrade"))
    shell = job_pb2.ShellAction(argv=["true"])
    run = await api("SubmitRun", run_service_pb2.SubmitRunRequest(spec=job_pb2.Job(shell=shell)))
    listed = await api("ListRuns", run_service_pb2.ListRunsRequest())
    assert [one.reason for one in listed.runs] == [common_pb2.REASON_PAUSED]
    why = await api("ExplainRun", run_service_pb2.ExplainRunRequest(run_id=run.run_id))
    assert "paused by tester since" in why.answer
    assert why.answer.endswith(": upgrade.")
    assert why.checks[0].remedy == "schedctl cluster resume"


async def test_a_recovery_is_shown_and_resumed_by_a_choice_alone(api):
    """P2.9"""
    store = api.services.pauses
    held = await recover(RecoveryStore(store.database), None, None)
    seen = await api("GetCluster", wire.GetClusterRequest())
    assert (seen.paused, seen.recovering, seen.pause_note) == (True, True, held.note)
    assert seen.lost_until.seconds
    with pytest.raises(FailedPreconditionError) as refused:
        await api("ResumeCluster", wire.ResumeClusterRequest())
    assert refused.value.reason == "RECOVERING"
    for flag in ("--catch-up-since", "--catch-up ", "--no-catch-up"):
        assert flag in refused.value.remedy
    both = wire.ResumeClusterRequest(catch_up=True)
    both.catch_up_since.FromSeconds(1)
    with pytest.raises(InvalidArgumentError):
        await api("ResumeCluster", both)
    assert (await api("GetCluster", wire.GetClusterRequest())).recovering

    chosen = wire.ResumeClusterRequest()
    chosen.catch_up_since.FromSeconds(1_700_000_000)
    assert not (await api("ResumeCluster", chosen)).paused
    [entry, *_] = (await api("ListAudit", wire.ListAuditRequest(object="cluster"))).entries
    assert json.loads(entry.before)["recovering"]
    assert json.loads(entry.after)["catchUpSince"] == "2023-11-14T22:13:20+00:00"


async def test_a_resume_catches_up_since_any_past_time_and_no_future_one(api):
    """A slip in the year would skip all that fell due, for good."""
    await api("PauseCluster", wire.PauseClusterRequest())
    since = wire.ResumeClusterRequest()
    since.catch_up_since.FromDatetime(api.clock.now() + timedelta(hours=1))
    with pytest.raises(InvalidArgumentError, match="is in the future"):
        await api("ResumeCluster", since)
    assert (await api("GetCluster", wire.GetClusterRequest())).paused
    since.catch_up_since.FromJsonString("1970-01-01T00:00:00Z")
    assert not (await api("ResumeCluster", since)).paused
    [pause] = (await api.services.pauses.read()).all
    assert pause.skipped_until() is None


async def test_a_note_during_a_recovery_keeps_the_loss_and_the_remedy(api):
    held = await recover(RecoveryStore(api.services.pauses.database), None, None)
    noted = await api("PauseCluster", wire.PauseClusterRequest(note="on it"))
    assert noted.pause_note == f"{held.note} (tester: on it)"


@pytest.mark.parametrize("note", ["a\nb", "\x1b[31mred", "x" * 1_001])
async def test_a_note_is_one_line_of_plain_text(api, note):
    with pytest.raises(InvalidArgumentError, match="note"):
        await api("PauseCluster", wire.PauseClusterRequest(note=note))
