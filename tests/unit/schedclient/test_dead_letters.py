"""Dead letters and redrives in the SDK: what is sent, what is read, what is sent again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from schedclient import Client, DeadlineExceeded
from schedproto.v1 import common_pb2, run_pb2
from schedproto.v1 import run_service_pb2 as runs
from support.scripted import Refusal, Scripted

DIED = datetime(2026, 11, 23, 10, tzinfo=UTC)
NEW = common_pb2.Payload(json='{"new":1}')


def letter(**fields: object) -> run_pb2.DeadLetter:
    dead = run_pb2.Run(run_id="r", job="etl", state=common_pb2.RUN_STATE_FAILED)
    made = run_pb2.DeadLetter(run=dead, fingerprint="f", **fields)
    made.died_at.FromDatetime(DIED)
    return made


def redrive(state: str = "OPEN", **fields: object) -> run_pb2.Redrive:
    number = run_pb2.Redrive.State.Value(f"STATE_{state}")
    return run_pb2.Redrive(redrive_id="d", job="etl", rate=10, total=5, state=number, **fields)


async def test_a_redriven_run_names_the_dead_letter(client: Client, member: Scripted):
    made = run_pb2.Run(run_id="n", redrive_of="r", trigger=run_pb2.Run.TRIGGER_REDRIVE)
    member.say("RetryRun", made)

    again = await client.runs.retry("r", payload={"new": 1})
    await client.runs.retry("r")

    assert (again.run_id, again.redrive_of, again.trigger) == ("n", "r", "REDRIVE")
    edited, as_it_was = member.received("RetryRun")
    assert (edited.run_id, edited.payload) == ("r", NEW)
    assert not as_it_was.HasField("payload")


async def test_letters_are_listed_by_filter(client: Client, member: Scripted):
    member.say("ListDeadLetters", runs.ListDeadLettersResponse(dead_letters=[letter()]))

    [one] = [
        each
        async for each in client.dead_letters.list(
            job="etl", fingerprint="f", resolved=True, redrive="d"
        )
    ]

    assert (one.run.run_id, one.fingerprint, one.died_at) == ("r", "f", DIED)
    assert (one.resolution, one.resolved_at, one.redriven_as, one.note) == (None, None, None, None)
    [sent] = member.received("ListDeadLetters")
    assert (sent.job, sent.fingerprint, sent.resolved, sent.redrive_id) == ("etl", "f", True, "d")


async def test_a_letter_shows_its_resolution(client: Client, member: Scripted):
    member.say(
        "GetDeadLetter",
        letter(
            resolution=run_pb2.DeadLetter.RESOLUTION_REDRIVEN,
            resolved_by="ann",
            redriven_as="n",
            redrive_id="d",
        ),
    )

    found = await client.dead_letters.get("r")

    assert (found.resolution, found.resolved_by) == ("REDRIVEN", "ann")
    assert (found.redriven_as, found.redrive_id) == ("n", "d")
    assert found.to_json()["resolution"] == "REDRIVEN"


async def test_groups_show_the_count_of_each_error(client: Client, member: Scripted):
    group = run_pb2.DeadLetterGroup(fingerprint="f", count=3, queued=1, exit_code=2, run_id="r")
    member.say("ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse(groups=[group]))

    [found] = await client.dead_letters.groups(job="etl")

    assert (found.count, found.queued, found.exit_code, found.run_id) == (3, 1, 2, "r")
    assert (found.job, found.error) == (None, None)
    assert member.received("ListDeadLetterGroups")[0].job == "etl"


async def test_named_or_selected_letters_are_discarded(client: Client, member: Scripted):
    member.say("DiscardDeadLetters", runs.DiscardDeadLettersResponse(discarded=2))

    assert await client.dead_letters.discard(run_ids=["r", "s"], note="known") == 2
    await client.dead_letters.discard(job="etl", fingerprint="f")
    await client.dead_letters.discard(all=True)
    group = run_pb2.DeadLetterGroup(fingerprint="f", submitted=True)
    member.say("ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse(groups=[group]))
    [found] = await client.dead_letters.groups()
    await client.dead_letters.discard(group=found)

    named, chosen, every, alone = member.received("DiscardDeadLetters")
    assert (list(named.run_ids), named.note, named.all) == (["r", "s"], "known", False)
    assert (chosen.job, chosen.fingerprint) == ("etl", "f")
    assert every.all
    assert alone.group == runs.ChosenGroup(fingerprint="f", submitted=True)
    assert alone.HasField("group")
    assert not every.HasField("group")


async def test_a_group_covers_no_letter_newer_than_its_newest(client: Client, member: Scripted):
    group = run_pb2.DeadLetterGroup(fingerprint="f", job="etl", count=2)
    newest = DIED.replace(microsecond=123_456)
    group.last_died_at.FromDatetime(newest)
    member.say("ListDeadLetterGroups", runs.ListDeadLetterGroupsResponse(groups=[group]))
    member.say("DiscardDeadLetters", runs.DiscardDeadLettersResponse(discarded=2))
    member.say("RedriveDeadLetters", runs.RedriveDeadLettersResponse(total=5, redrive=redrive()))

    [found] = await client.dead_letters.groups()
    await client.dead_letters.discard(group=found, until=found.last_died_at, at_most=found.count)
    await client.dead_letters.redrive(group=found, until=found.last_died_at, at_most=2)
    await client.dead_letters.discard(all=True)

    discarded, every = member.received("DiscardDeadLetters")
    [redriven] = member.received("RedriveDeadLetters")
    assert discarded.until.ToDatetime(tzinfo=UTC) == newest
    assert redriven.until.ToDatetime(tzinfo=UTC) == newest
    assert (discarded.at_most, redriven.at_most, every.at_most) == (2, 2, 0)
    assert not every.HasField("until")


async def test_a_redrive_is_retried_with_the_same_key(client: Client, member: Scripted):
    member.say("RedriveDeadLetters", runs.RedriveDeadLettersResponse(total=5, redrive=redrive()))

    plan = await client.dead_letters.redrive(fingerprint="f", rate=100, payload={"new": 1})
    await client.dead_letters.redrive(all=True, idempotency_key="k")

    assert (plan.total, plan.redrive and plan.redrive.redrive_id) == (5, "d")
    first, second = member.received("RedriveDeadLetters")
    assert (first.fingerprint, first.rate, first.payload) == ("f", 100, NEW)
    assert first.idempotency_key
    assert (second.all, second.rate, second.idempotency_key) == (True, 0, "k")


async def test_a_dry_run_returns_the_count_and_has_no_key(client: Client, member: Scripted):
    member.say("RedriveDeadLetters", runs.RedriveDeadLettersResponse(total=5))

    plan = await client.dead_letters.redrive(job="etl", dry_run=True)

    assert (plan.total, plan.redrive) == (5, None)
    [sent] = member.received("RedriveDeadLetters")
    assert (sent.job, sent.dry_run, sent.idempotency_key) == ("etl", True, "")


async def test_a_redrive_is_read_listed_stopped_and_resumed(client: Client, member: Scripted):
    stands = redrive(created=2, omitted=1, runs={"SUCCEEDED": 2})
    member.say("GetRedrive", stands)
    member.say("ListRedrives", runs.ListRedrivesResponse(redrives=[stands]))
    member.say("StopRedrive", redrive("STOPPED", created=2))
    member.say("ResumeRedrive", stands)

    got = await client.redrives.get("d")
    stopped = await client.redrives.stop("d")

    assert (got.state, got.created, got.left, got.runs) == ("OPEN", 2, 2, {"SUCCEEDED": 2})
    assert (got.fingerprint, got.finished_at, got.submitted) == (None, None, None)
    assert stopped.state == "STOPPED"
    assert await client.redrives.resume("d") == got
    assert [one async for one in client.redrives.list()] == [got]
    assert [one.redrive_id for one in member.received("StopRedrive")] == ["d"]


async def test_a_lost_answer_is_retried_but_nothing_is_discarded_twice(
    client: Client, member: Scripted
):
    lost = Refusal("UNAVAILABLE", bare=True)
    member.say("RetryRun", lost, run_pb2.Run(run_id="n"))
    member.say("DiscardDeadLetters", lost, runs.DiscardDeadLettersResponse(discarded=2))

    assert (await client.runs.retry("r")).run_id == "n"
    with pytest.raises(DeadlineExceeded, match="no answer from"):
        await client.dead_letters.discard(all=True)

    assert len(member.received("DiscardDeadLetters")) == 1
