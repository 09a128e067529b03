"""Manifests: their meaning, and every mistake at its line. Then apply, against a real server."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from schedctl.manifests.manifests import Manifest, ManifestFault, parse
from schedkit.protojson.problems import IN_THE_PAST
from schedproto.v1 import common_pb2, job_pb2
from support.scripted import Refusal

EXAMPLE = """\
kind: job            # job (default), pool, calendar
name: nightly-etl
labels: {team: data}
cron: "H 2 * * *"
time_zone: Europe/Berlin
overlap: skip
retry: {max_attempts: 4, backoff: 30s, max: 10m}
timeout: 2h
priority: high
require: {disk: ssd}
shell: {argv: ["/opt/etl/run", "--full"], user: etl, env: {MODE: full}}
on_failure: {webhook: "https://ops.example.com/hook"}
---
name: ping
every: 30s
http: {method: POST, url: "https://api.example.com/ping", json: {from: schedd}}
"""


KUBERNETES = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: report}
spec:
  schedule: "0 9 * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  jobTemplate: {spec: {template: {spec: {containers: [{name: report, image: report}]}}}}
"""


def jobs_of(text: str) -> list[job_pb2.Job]:
    found = list(parse("m.yaml", text))
    assert all(isinstance(one, Manifest) for one in found), found
    return [one.spec for one in found if isinstance(one, Manifest)]


def faults_of(text: str) -> list[tuple[str, str, str]]:
    return [
        (one.where, one.problem, one.hint)
        for one in parse("m.yaml", text)
        if isinstance(one, ManifestFault)
    ]


def test_the_example_is_parsed_as_documented():
    etl, ping = jobs_of(EXAMPLE)
    assert (etl.name, list(etl.cron), etl.timeout.seconds) == ("nightly-etl", ["H 2 * * *"], 7200)
    assert (etl.priority, etl.overlap) == (common_pb2.PRIORITY_HIGH, job_pb2.OVERLAP_SKIP)
    assert (etl.retry.max_attempts, etl.retry.max.seconds) == (4, 600)
    assert dict(etl.shell.env) == {"MODE": "full"}
    assert etl.on_failure.webhook == "https://ops.example.com/hook"
    assert (ping.every.seconds, ping.http.json.json) == (30, '{"from":"schedd"}')


def test_values_of_text_fields_stay_as_written():
    [job] = jobs_of(
        "name: on\nlabels: {a: yes, b: 010, c: 22:30, d: 1.0}\nshell: {argv: [echo, 5, true, null]}"
    )
    assert job.name == "on"
    assert dict(job.labels) == {"a": "yes", "b": "010", "c": "22:30", "d": "1.0"}


def test_a_payload_takes_plain_literals_as_json_and_quoted_ones_as_texts():
    [job] = jobs_of('name: x\npayload: {n: 5, s: "5", t: true, z: ~, w: yes, l: [1.5, a]}')
    assert json.loads(job.payload.json) == {
        "n": 5,
        "s": "5",
        "t": True,
        "z": None,
        "w": "yes",
        "l": [1.5, "a"],
    }


def test_an_empty_value_is_as_if_absent_and_empty_documents_are_no_jobs():
    [job] = jobs_of("---\n---\nname: x\ntimeout:\n---\n")
    assert not job.HasField("timeout")


def test_json_is_yaml():
    [job] = jobs_of('{"name": "x", "maxRuns": 3, "onDemand": true}')
    assert (job.max_runs, job.on_demand) == (3, True)


def test_a_list_is_as_many_manifests_as_it_has_entries():
    assert [job.name for job in jobs_of('[{"name": "a"}, {"name": "b"}]')] == ["a", "b"]


def test_anchors_are_followed():
    one, two = jobs_of(
        "name: a\nretry: &r {max_attempts: 2}\n---\nname: b\nretry: {max_attempts: 2}"
    )
    assert one.retry == two.retry


def test_every_mistake_of_every_document_is_reported_at_its_line():
    faults = faults_of(
        "name: a\ncrno: x\nretry:\n  max_attempts: 4\n  backof: 5s\n---\nname: b\npriority: hihg\n"
        "shell:\n  argv:\n    - ls\n  success_codes:\n    - 0\n    - one\n"
    )
    assert [where for where, _, _ in faults] == ["m.yaml:2", "m.yaml:5", "m.yaml:8", "m.yaml:14"]
    assert faults[0] == ("m.yaml:2", "crno: unknown field", 'did you mean "cron"?')
    assert faults[1] == ("m.yaml:5", "retry.backof: unknown field", 'did you mean "backoff"?')
    assert 'did you mean "high"' in faults[2][1]
    assert faults[3][1].startswith("shell.success_codes[1]: the value must be a whole number")


@pytest.mark.parametrize("line", ["cron: */5 * * * *", "cron: [*/5 * * * *]", "cron: * * * * *"])
def test_an_unquoted_star_gets_the_hint_to_quote_it(line):
    [(where, problem, hint)] = faults_of(f"name: x\n{line}\n")
    assert where == "m.yaml:2"
    assert "YAML" in problem
    assert hint.startswith("quote it")


def test_invalid_yaml_is_reported_at_its_line():
    [(where, problem, hint)] = faults_of("name: x\nfoo: {a: [}\n")
    assert where == "m.yaml:2"
    assert "YAML" in problem
    assert hint == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "an object with keys"),
        ("a\n", "an object with keys"),
        ("labels: {a: b}\n", "name is missing"),
        ("kind: jbo\nname: x\n", "'jbo' is unknown"),
        ("kind: pool\nlimit: 3\n", "name is missing"),
        (
            "kind: pool\nname: x\nrate: 100\n",
            "rate '100' has no time: write for example 100/s or 100/m",
        ),
        ("kind: pool\nname: x\nrate: 2.5/m\n", "the count must be a whole number"),
        ("kind: pool\nname: x\nlimits: 3\n", "limits"),
        ("kind: calendar\nweekdays: [sun]\n", "name is missing"),
        ("kind: calendar\nname: x\nweekday: [sun]\n", "weekday"),
        ("name: x\nname: y\n", "name is given twice"),
        ("name: x\ntimeout: 90\n", "needs a unit"),
        ("name: x\non_demand: yes\n", "true or false"),
    ],
)
def test_other_mistakes_are_reported(text, said):
    [(_, problem, _)] = faults_of(text)
    assert said in problem


@pytest.mark.parametrize("at", ["2026-12-24T18:00:00", '"2026-12-24T18:00:00"', "2026-12-24 18:00"])
def test_a_time_without_an_offset_is_a_local_time(at):
    [job] = jobs_of(f"name: x\nat: {at}\ntime_zone: Europe/Berlin\n")
    assert datetime.fromisoformat(job.local_at) == datetime.fromisoformat("2026-12-24T18:00:00")
    assert job.time_zone == "Europe/Berlin"
    assert not job.HasField("at")


def test_a_time_with_an_offset_is_that_time():
    [job] = jobs_of("name: x\nat: 2026-12-24T18:00:00+01:00\n")
    assert job.at.ToJsonString() == "2026-12-24T17:00:00Z"
    assert not job.local_at


def test_an_interval_of_weeks_may_begin_at_a_local_time():
    [job] = jobs_of("name: x\nevery: 2w\nanchor: 2026-01-06T09:00:00\ntime_zone: Europe/Berlin\n")
    assert (job.every.seconds, job.anchor) == (14 * 86400, "2026-01-06T09:00:00")
    assert job.time_zone == "Europe/Berlin"


@pytest.fixture
def manifest(home):
    def write(text: str, name: str = "m.yaml") -> str:
        file = home / "manifests" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return str(file)

    return write


def unknown(request):
    return Refusal("NOT_FOUND", f"there is no job {request.job}")


async def test_apply_creates_missing_jobs(ctl, member, manifest):
    member.say("GetJob", unknown)
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl("apply", "-f", manifest(EXAMPLE))
    assert ended.code == 0, ended.err
    assert ended.lines == ["job nightly-etl created", "job ping created"]
    sent = [(one.job.name, one.validate_only) for one in member.received("CreateJob")]
    assert sent == [("nightly-etl", True), ("ping", True), ("nightly-etl", False), ("ping", False)]


def edit(generation: int):
    def answer(request):
        job = job_pb2.Job()
        job.CopyFrom(request.job)
        job.generation = generation
        return job

    return answer


async def test_apply_updates_changed_fields_and_leaves_the_rest(ctl, member, manifest):
    member.say("GetJob", lambda request: job_pb2.Job(name=request.job, generation=2, etag="e"))
    member.say("UpdateJob", lambda r: edit(3 if r.job.name == "a" else 2)(r))
    ended = await ctl("apply", "-f", manifest("name: a\ntimeout: 5s\n---\nname: b\n"))
    assert ended.lines == ["job a updated", "job b unchanged"]
    assert "timeout: none → 5s" in ended.err
    stored = [one for one in member.received("UpdateJob") if not one.validate_only]
    assert [(one.job.name, one.etag, list(one.update_mask.paths)) for one in stored] == [
        ("a", "e", ["*"])
    ]


async def test_apply_pauses_jobs_that_a_manifest_pauses_and_resumes_none(ctl, member, manifest):
    held = {"b": "", "c": "disk is full", "d": "a person's own"}

    def stored(name: str) -> job_pb2.Job:
        note = held.get(name)
        return job_pb2.Job(
            name=name, generation=2, etag="e", paused=note is not None, pause_note=note or ""
        )

    member.say("GetJob", lambda request: stored(request.job))
    member.say("UpdateJob", lambda request: stored(request.job.name))
    member.say("PauseJob", lambda request: stored(request.job))
    text = (
        "name: a\npaused: true\npause_note: upgrade\n---\nname: b\n---\n"
        "name: c\npaused: true\npause_note: disk is full\n---\nname: d\npaused: true\n"
    )
    dry = await ctl("apply", "--dry-run", "-f", manifest(text))
    assert (dry.code, dry.lines[0]) == (1, "job a would be updated")
    assert not member.received("PauseJob")
    ended = await ctl("apply", "-f", manifest(text))
    assert ended.lines == ["job a updated", "job b unchanged", "job c unchanged", "job d unchanged"]
    assert "paused: upgrade" in ended.err
    assert [(one.job, one.note) for one in member.received("PauseJob")] == [("a", "upgrade")]
    assert all(one.validate_only for one in member.received("UpdateJob"))


async def test_apply_pauses_before_it_edits_so_that_nothing_new_starts(ctl, member, manifest):
    stored = {"generation": 2, "paused": False}

    def job(**changes: object) -> job_pb2.Job:
        generation = stored["generation"]
        return job_pb2.Job(name="a", etag=f"e{generation}", **{**stored, **changes})

    def paused(_: object) -> job_pb2.Job:
        stored.update(generation=stored["generation"] + 1, paused=True)
        return job()

    member.say("GetJob", lambda _: job())
    member.say("PauseJob", paused)
    member.say("UpdateJob", lambda request: edit(stored["generation"] + 1)(request))
    text = "name: a\netag: e2\ntimeout: 5s\npaused: true\n"
    ended = await ctl("apply", "-f", manifest(text))
    assert ended.lines == ["job a updated"], ended.err
    assert member.received("PauseJob")[0].etag == "e2", "only the version of this caller is paused"
    *_, edited = member.received("UpdateJob")
    assert (edited.etag, edited.job.etag, edited.validate_only) == ("e3", "", False)


@pytest.mark.parametrize(("generation", "note", "code"), [(3, "", 0), (4, "", 5), (3, "mine", 5)])
async def test_apply_distinguishes_its_own_unanswered_pause_from_another_edit(
    ctl, member, manifest, generation: int, note: str, code: int
):
    before = job_pb2.Job(name="a", generation=2, etag="e2")
    there = job_pb2.Job(name="a", generation=generation, etag="e3", paused=True, pause_note=note)
    found = iter([before, there])
    member.say("GetJob", lambda _: next(found))
    member.say("UpdateJob", before)
    member.say("PauseJob", Refusal("ABORTED", "job 'a' was changed meanwhile", "ETAG_MISMATCH"))
    ended = await ctl("apply", "-f", manifest("name: a\npaused: true\n"))
    assert ended.code == code, ended.err


OVER = "name: a\npaused: true\npaused_until: 2020-01-01T00:00:00Z\n"


def past(field: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", f"{field}: {IN_THE_PAST}", fields=[(field, IN_THE_PAST)])


async def test_apply_creates_a_job_with_a_pause_that_ended_by_cluster_time(ctl, member, manifest):
    member.say("GetJob", unknown)
    member.say("CreateJob", lambda r: past("paused_until") if r.job.paused else r.job)
    ended = await ctl("apply", "-f", manifest(OVER))
    assert ended.lines == ["job a created"], ended.err
    assert "paused_until of a is in the past: the pause is ignored" in ended.err
    assert [one.job.paused for one in member.received("CreateJob")] == [True, False, False]


async def test_apply_leaves_a_job_with_a_pause_that_ended_by_cluster_time(ctl, member, manifest):
    there = job_pb2.Job(name="a", generation=2, etag="e2")
    member.say("GetJob", there)
    member.say("UpdateJob", there)
    member.say("PauseJob", past("until"))
    ended = await ctl("apply", "-f", manifest(OVER))
    assert ended.code == 0, ended.err
    assert "paused_until of a is in the past: the pause is ignored" in ended.err
    assert len(member.received("PauseJob")) == 1


async def test_an_etag_in_a_manifest_guards_its_version_of_the_job(ctl, member, manifest):
    member.say("GetJob", lambda request: job_pb2.Job(name=request.job, generation=2, etag="new"))
    member.say("UpdateJob", Refusal("ABORTED", "job 'a' was changed meanwhile", "ETAG_MISMATCH"))
    ended = await ctl("apply", "-f", manifest("name: a\netag: old\ntimeout: 5s\n"))
    [asked] = member.received("UpdateJob")
    assert (asked.job.etag, asked.validate_only) == ("old", True)
    assert ended.code == 5
    assert "ABORTED, ETAG_MISMATCH" in ended.err
    assert "read the job again (schedctl job get a -o yaml), or remove etag" in ended.err


async def test_a_manifest_goes_to_the_namespace_it_names(ctl, member, manifest):
    member.say("GetJob", unknown)
    member.say("CreateJob", lambda request: request.job)
    text = "name: a\nnamespace: other\n---\nname: a\n"
    ended = await ctl("apply", "-f", manifest(text))
    assert ended.code == 0, ended.err
    assert [one.namespace for one in member.received("GetJob")] == ["other", "default"]
    stored = [one.job.namespace for one in member.received("CreateJob") if not one.validate_only]
    assert stored == ["other", "default"]


async def test_a_manifest_of_another_namespace_than_the_flag_is_refused(ctl, member, manifest):
    text = "name: a\nnamespace: other\n"
    ended = await ctl("apply", "--namespace", "mine", "-f", manifest(text))
    assert (ended.code, member.received("GetJob")) == (2, [])
    assert "a belongs to namespace other, but --namespace names mine" in ended.err


async def test_a_key_that_is_not_text_is_refused_at_its_line(ctl, member, manifest):
    ended = await ctl("apply", "-f", manifest("name: a\npayload:\n  ? [1, 2]\n  : 3\n"))
    assert (ended.code, member.received("GetJob")) == (2, [])
    assert ":3: a list or an object is used as a key" in ended.err


async def test_an_etag_of_a_deleted_job_creates_no_job(ctl, member, manifest):
    member.say("GetJob", unknown)
    ended = await ctl("apply", "-f", manifest("name: a\netag: old\n"))
    assert (ended.code, member.received("CreateJob")) == (5, [])
    assert "remove etag from the manifest to create the job" in ended.err


async def test_a_dry_run_stores_nothing_and_says_1_where_something_would_change(
    ctl, member, manifest
):
    member.say("GetJob", unknown)
    member.say("CreateJob", lambda request: request.job)
    ended = await ctl("apply", "--dry-run", "-f", manifest("name: a\n"))
    assert (ended.code, ended.lines) == (1, ["job a would be created"])
    assert all(one.validate_only for one in member.received("CreateJob"))


async def test_one_wrong_document_prevents_all_requests(ctl, member, manifest):
    ended = await ctl("apply", "-f", manifest("name: a\n---\nname: b\ncrno: x\nevry: 5s\n"))
    assert ended.code == 2
    lines = ended.err.splitlines()
    assert len(lines) == 3
    assert "m.yaml:4: crno: unknown field" in lines[0]
    assert "m.yaml:5: evry: unknown field" in lines[1]
    assert 'did you mean "cron"?' in lines[2]
    assert member.requests == []


async def test_a_kubernetes_cronjob_is_named_with_its_fields_and_nothing_is_sent(
    ctl, member, manifest
):
    ended = await ctl("apply", "-f", manifest(KUBERNETES))
    assert ended.code == 2
    what = ended.err.splitlines()[0]
    assert "is a Kubernetes CronJob: schedule → cron, timeZone → time_zone" in what
    assert "concurrencyPolicy → overlap" in what
    assert "did you mean" not in ended.err
    assert member.requests == []


async def test_one_refused_document_prevents_all_changes(ctl, member, manifest):
    member.say("GetJob", unknown)
    member.say(
        "CreateJob",
        lambda r: Refusal("INVALID_ARGUMENT", "no zone") if r.job.name == "b" else r.job,
    )
    ended = await ctl("apply", "-f", manifest("name: a\n---\nname: b\n"))
    assert ended.code == 2
    assert "m.yaml:3: b: no zone" in ended.err
    assert all(one.validate_only for one in member.received("CreateJob"))


async def test_the_same_name_twice_is_refused(ctl, member, manifest):
    ended = await ctl("apply", "-f", manifest("name: a\n---\nname: a\n"))
    assert ended.code == 2
    assert "a is already defined in" in ended.err


async def test_a_folder_is_all_its_manifests(ctl, member, manifest, home):
    member.say("GetJob", unknown)
    member.say("CreateJob", lambda request: request.job)
    manifest("name: a\n", "a.yaml")
    manifest("name: b\n", "b.yml")
    manifest("no manifest", "README.md")
    ended = await ctl("apply", "-f", str(home / "manifests"), "-o", "name")
    assert ended.lines == ["a", "b"]


async def test_a_missing_file_exits_with_2(ctl, member):
    ended = await ctl("apply", "-f", "/nowhere/m.yaml")
    assert ended.code == 2
    assert "/nowhere/m.yaml" in ended.err


@pytest.mark.slow
def test_a_few_lines_that_expand_to_billions_of_values_are_refused_at_once():
    rows = ["name: bomb", "every: 1h", "payload:", "  a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    [fault] = parse("bomb.yaml", "\n".join(rows))
    assert isinstance(fault, ManifestFault)
    assert "more than 200,000 values" in fault.problem


def test_an_alias_that_contains_itself_is_refused():
    [fault] = parse("ring.yaml", "name: ring\npayload: &a [*a]\n")
    assert isinstance(fault, ManifestFault)
    assert "lists and objects more than" in fault.problem


@pytest.mark.slow
@pytest.mark.parametrize("levels", [150, 100_000])
def test_endless_nesting_is_refused(levels: int):
    [fault] = parse("deep.yaml", f"name: deep\npayload: {'[' * levels}{']' * levels}\n")
    assert isinstance(fault, ManifestFault)
    assert "nests" in fault.problem


def test_a_yaml_tag_is_rejected():
    [fault] = parse("m.yaml", "name: a\npayload: !!python/name:os.system x\n")
    assert isinstance(fault, ManifestFault)
    assert (fault.where, "!!python/name:os.system" in fault.problem) == ("m.yaml:2", True)
