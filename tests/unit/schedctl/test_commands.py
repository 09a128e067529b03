"""Rules of every command: forms of output, colors, times, exit codes, error messages.

The server is a real one with scripted answers.
"""

import json

import pytest

from schedproto.v1 import cluster_service_pb2 as cluster
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import run_service_pb2 as runs
from support.answers import ETL, run_of
from support.scripted import Refusal


async def test_jobs_are_listed_in_every_form(ctl, member):
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[ETL]))
    table = await ctl("job", "list")
    assert table.lines[0].split()[:3] == ["NAME", "SCHEDULE", "ACTION"]
    assert "0 2 * * *" in table.lines[1]
    assert "id1" not in table.out
    assert "id1" in (await ctl("job", "list", "-o", "wide")).out
    assert [one["name"] for one in (await ctl("job", "list", "-o", "json")).data] == ["etl"]
    assert json.loads((await ctl("-o", "jsonl", "job", "list")).lines[0])["jobId"] == "id1"
    assert (await ctl("job", "list", "-o", "name")).out == "etl\n"
    assert "job_id: id1" in (await ctl("job", "list", "-o", "yaml")).out
    assert len((await ctl("job", "list", "--no-headers")).lines) == 1


async def test_the_later_of_two_output_flags_wins(ctl, member):
    member.say("ListJobs", jobs.ListJobsResponse(jobs=[ETL]))
    assert (await ctl("-o", "json", "job", "list", "-o", "name")).out == "etl\n"


async def test_tables_end_at_fifty_and_programs_get_all(ctl, member):
    def page(request):
        count = min(request.page_size, 120)
        return jobs.ListJobsResponse(jobs=[job_pb2.Job(name=f"j{n}") for n in range(count)])

    member.say("ListJobs", page)
    assert len((await ctl("job", "list", "--no-headers")).lines) == 50
    assert len((await ctl("job", "list", "-o", "json")).data) == 120
    assert len((await ctl("job", "list", "-o", "jsonl", "--limit", "7")).lines) == 7


async def test_an_empty_list_is_an_empty_array(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse())
    assert (await ctl("run", "list", "-o", "json")).data == []


async def test_a_table_that_was_cut_says_so_and_how_to_get_the_rest(ctl, member):
    def page(count):
        return lambda request: runs.ListRunsResponse(
            runs=[run_of() for _ in range(min(count, request.page_size))]
        )

    member.say("ListRuns", page(51))
    ended = await ctl("run", "list", "--no-headers")
    assert len(ended.lines) == 50
    assert ended.err == "only the first 50 are shown: --limit N shows more, -o json all\n"
    asked = await ctl("run", "list", "--no-headers", "--limit", "7")
    assert (len(asked.lines), asked.err) == (7, "")
    whole = await ctl("run", "list", "-o", "jsonl")
    assert (len(whole.lines), whole.err) == (51, "")
    member.say("ListRuns", page(50))
    just = await ctl("run", "list", "--no-headers")
    assert (len(just.lines), just.err) == (50, "")


async def test_a_flag_prints_the_version_too(ctl, member):
    assert (await ctl("--version")).out == (await ctl("version")).out


async def test_commands_show_the_cluster_its_workers_the_audit_and_dead_letters(ctl, member):
    member.say("GetCluster", cluster.Cluster(leader="m1", shards=256, owned=255))
    leader = cluster.Member(name="m1", role=cluster.Member.ROLE_LEADER)
    member.say("ListMembers", cluster.ListMembersResponse(members=[leader]))
    member.say("ListShards", cluster.ListShardsResponse(shards=[cluster.Shard(shard=7)]))
    worker = cluster.Worker(name="w1", slots=16, labels={"disk": "ssd"})
    member.say("ListWorkers", cluster.ListWorkersResponse(workers=[worker]))
    member.say("GetWorker", worker)
    entry = cluster.AuditEntry(action="result", outcome="refused", reason="STALE")
    member.say("ListAudit", cluster.ListAuditResponse(entries=[entry]))
    letter = run_pb2.DeadLetter(run=run_of(common_pb2.RUN_STATE_FAILED), fingerprint="f1")
    member.say("ListDeadLetters", runs.ListDeadLettersResponse(dead_letters=[letter]))
    assert "255 of 256" in (await ctl("cluster", "status")).out
    assert (await ctl("cluster", "status", "-o", "json")).data["leader"] == "m1"
    assert (await ctl("cluster", "members", "-o", "json")).data[0]["role"] == "LEADER"
    assert (await ctl("cluster", "shards", "-o", "name")).out == "7\n"
    assert "disk=ssd" in (await ctl("worker", "list")).out
    member.say("GetCluster", cluster.Cluster(problems=["what it says of members may be old"]))
    for listing in ("cluster members", "cluster shards", "worker list"):
        assert "problem: what it says of members may be old" in (await ctl(*listing.split())).err
    assert "disk=ssd" in (await ctl("worker", "describe", "w1")).out
    audit = await ctl("audit", "list", "--action", "result", "--run", "r1", "-o", "json")
    assert (audit.data[0]["outcome"], audit.data[0]["reason"]) == ("refused", "STALE")
    assert member.received("ListAudit")[0].run_id == "r1"
    assert "f1" in (await ctl("dlq", "list")).out


async def test_the_audit_shows_the_token_of_an_actor(ctl, member):
    source = "ipv4:127.0.0.1:4711 token:0b7a58b2-5b8e-4f7c-8f0e-2f4d8a9c1e77"
    entry = cluster.AuditEntry(actor="user/dev", action="pause", outcome="ok", source=source)
    member.say("ListAudit", cluster.ListAuditResponse(entries=[entry]))
    assert "user/dev (token 0b7a58b2)" in (await ctl("audit", "list")).out
    [entry] = (await ctl("audit", "list", "-o", "json")).data
    assert (entry["actor"], entry["source"]) == ("user/dev", source)


@pytest.mark.parametrize(
    ("reason", "after", "shown"),
    [
        ("STALE", "", "STALE"),
        ("", '{"drained":true,"by":"user/ann","reason":"new disks"}', "new disks"),
        ("", '{"paused":true,"by":"user/ann","note":"the warehouse moves"}', "the warehouse moves"),
        ("", '{"note":"it was short"}', "it was short"),
        ("NO_SUCH_MEMBER", '{"leader":"m9","reason":"upgrade"}', "NO_SUCH_MEMBER: upgrade"),
        ("", '{"paused":true,"by":"user/ann","note":""}', ""),
        ("", '{"cron":["0 9 * * *"],"payload":{"note":"of the job"}}', ""),
        ("", '{"note":{"$cut":9000}}', ""),
        ("", '["note"]', ""),
        ("", "no JSON", ""),
    ],
)
async def test_the_audit_shows_the_typed_reason_beside_the_reason_of_a_rejection(
    ctl, member, reason, after, shown
):
    entry = cluster.AuditEntry(action="x", object="y", outcome="ok", reason=reason, after=after)
    member.say("ListAudit", cluster.ListAuditResponse(entries=[entry]))
    line = (await ctl("audit", "list", "--no-headers")).out.splitlines()[0]
    assert line.partition("  ok")[2].strip() == shown
    [as_it_is] = (await ctl("audit", "list", "-o", "json")).data
    assert (as_it_is["reason"], as_it_is["after"]) == (reason or None, after or None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("INVALID_ARGUMENT", 2),
        ("OUT_OF_RANGE", 2),
        ("UNIMPLEMENTED", 2),
        ("NOT_FOUND", 3),
        ("UNAUTHENTICATED", 4),
        ("PERMISSION_DENIED", 4),
        ("ALREADY_EXISTS", 5),
        ("ABORTED", 5),
        ("FAILED_PRECONDITION", 5),
        ("UNAVAILABLE", 6),
        ("RESOURCE_EXHAUSTED", 6),
        ("DEADLINE_EXCEEDED", 7),
        ("INTERNAL", 70),
        ("UNKNOWN", 70),
    ],
)
async def test_every_status_has_its_exit_code_and_three_lines(ctl, member, status, code):
    member.say("GetRun", Refusal(status, "no", remedy="do this", fields=[("f", "is wrong")]))
    ended = await ctl("run", "get", "r1", "--timeout", "1")
    assert ended.code == code
    assert ended.err.splitlines() == [
        "error: no",
        f"  why: {status}, SCRIPTED; f: is wrong",
        "  try: do this",
    ]


async def test_an_unreachable_cluster_exits_with_6(ctl, member):
    await member.stop()
    ended = await ctl("--timeout", "0.5", "cluster", "status")
    assert ended.code == 6
    assert len(ended.err.splitlines()) == 3


async def test_colours_only_where_asked_with_a_symbol_beside(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse(runs=[run_of()]))
    plain = await ctl("run", "list")
    assert "\x1b" not in plain.out
    coloured = await ctl("run", "list", "--color", "always")
    assert "\x1b" in coloured.out
    assert "✓ SUCCEEDED" in coloured.out


async def test_times_are_shown_as_asked(ctl, member):
    member.say("ListRuns", runs.ListRunsResponse(runs=[run_of()]))
    assert "2026-01-01T00:00:00.000Z" in (await ctl("run", "list")).out
    assert " ago" in (await ctl("run", "list", "--time-format", "relative")).out
