"""The kind of a file is judged by its content, as a file and on standard input alike."""

import re
from pathlib import Path

import pytest

from schedctl.manifests import manifests
from schedctl.manifests.file_kinds import FileKind, kind_of
from schedproto.v1 import job_pb2

KUBERNETES = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: report}
spec:
  schedule: "0 9 * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
"""
SYSTEMD = "[Unit]\nDescription=x\n\n[Timer]\nOnCalendar=*-*-* 02:00:00\nPersistent=true\n"
CELERY = '{"add": {"task": "tasks.add", "schedule": 30.0, "args": [1, 2]}}\n'
ANACRONTAB = """\
SHELL=/bin/sh
START_HOURS_RANGE=3-22
1\t5\tcron.daily\t\tnice run-parts /etc/cron.daily
7 25 cron.weekly nice run-parts /etc/cron.weekly
@monthly 45 cron.monthly nice run-parts /etc/cron.monthly
"""
GITHUB = """\
name: nightly
on:
  schedule:
    - cron: "0 3 * * *"
jobs:
  build: {runs-on: ubuntu-latest, steps: [{run: make}]}
"""
DKRON = '{"name": "x", "schedule": "@every 1m", "executor": "shell", "executor_config": {}}\n'

FOREIGN = {
    "a Kubernetes CronJob": KUBERNETES,
    "a systemd timer": SYSTEMD,
    "a schedule of Celery beat": CELERY,
    "an anacrontab": ANACRONTAB,
    "a GitHub workflow": GITHUB,
    "a Dkron job": DKRON,
    "a launchd property list": '<?xml version="1.0"?>\n<plist version="1.0"><dict/></plist>\n',
    "a Docker Compose file": "services:\n  cron: {image: alpine}\n",
    "a Kubernetes object (kind Deployment)": "apiVersion: apps/v1\nkind: Deployment\n",
}
MORE_FOREIGN = {
    "a Kubernetes CronJob": "# list\n---\nkind: List\napiVersion: v1\nitems: [{kind: CronJob}]\n",
    "a schedule of Celery beat": '[{"model": "django_celery_beat.periodictask", "fields": {}}]',
    "a Dkron job": '[{"name": "x", "schedule": "@hourly", "executor_config": {}}]',
    "an anacrontab": "1 5 backup.daily /usr/local/bin/backup\n",
    "a systemd timer": "; mine\n[Timer]\nOnUnitActiveSec=5min\n",
}


@pytest.mark.parametrize(
    ("name", "text"), [*FOREIGN.items(), *MORE_FOREIGN.items()], ids=lambda one: one[:24]
)
@pytest.mark.parametrize("where", ["stdin", "x.yaml", "x"])
def test_the_format_of_another_scheduler_is_named_in_one_line(
    offline, monkeypatch, tmp_path: Path, name: str, text: str, where: str
) -> None:
    monkeypatch.setattr("schedctl.timetables.timetables.standard_input", text.encode)
    path = tmp_path / where
    path.write_text(text)
    ended = offline("cron", "lint", "-f", "-" if where == "stdin" else str(path))
    assert ended.code == 1
    (line,) = ended.lines
    assert re.search(f"error: the (file|document) is {re.escape(name)}", line)
    (fault,) = manifests.parse(where, text)
    assert isinstance(fault, manifests.ManifestFault)
    assert f"is {name}" in fault.problem


def test_the_fields_of_a_kubernetes_cronjob_are_mapped_to_ours(offline, tmp_path: Path) -> None:
    (fault,) = manifests.parse("x.yaml", KUBERNETES)
    assert isinstance(fault, manifests.ManifestFault)
    path = tmp_path / "x.yaml"
    path.write_text(KUBERNETES)
    linted = offline("cron", "lint", "-f", str(path)).out
    for part in ("schedule → cron", "timeZone → time_zone", "concurrencyPolicy → overlap"):
        assert part in fault.problem
        assert part in linted
    assert "did you mean" not in linted


@pytest.mark.parametrize(
    "text",
    [
        'labels: {team: data}\nname: a\ncron: "0 9 * * *"\nshell: {argv: [x]}\n',
        'time_zone: Europe/Berlin\nname: a\ncron: "0 9 * * *"\nshell: {argv: [x]}\n',
        '"name": a\n"cron": "0 9 * * *"\nshell: {argv: [x]}\n',
        "shell:\n  argv: [x]\nname: a\ncron: 0 9 * * *\n",
        '{"labels": {}, "name": "a", "cron": ["0 9 * * *"], "shell": {"argv": ["x"]}}',
        "# mine\n\n%YAML 1.1\n---\nname: a\ncron: 0 9 * * *\nshell: {argv: [x]}\n",
        "\ufeffname: a\ncron: 0 9 * * *\nshell: {argv: [x]}\n",
    ],
)
def test_a_manifest_is_recognized_from_any_source_with_any_beginning(
    offline, monkeypatch, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "job.txt"
    path.write_text(text)
    monkeypatch.setattr("schedctl.timetables.timetables.standard_input", text.encode)
    for source in ("-", str(path)):
        for command in ("lint", "forecast", "collide"):
            ended = offline("cron", command, "-f", source)
            assert ended.code == 0, ended.out + ended.err
            assert "left out" not in ended.err


async def test_the_yaml_of_job_get_is_read_from_a_pipe(ctl, member, monkeypatch) -> None:
    stored = job_pb2.Job(name="report", namespace="default", job_id="id1", etag="e1", generation=2)
    stored.labels["team"] = "data"
    stored.cron.append("17 4 * * *")
    stored.time_zone = "Europe/Berlin"
    stored.shell.argv.append("true")
    stored.next_run_at.FromSeconds(1_800_000_000)
    member.say("GetJob", stored)
    printed = (await ctl("job", "get", "report", "-o", "yaml")).out
    assert "labels:" in printed
    monkeypatch.setattr("schedctl.timetables.timetables.standard_input", printed.encode)
    linted = await ctl("cron", "lint", "-f", "-")
    assert linted.code == 0, linted.out
    assert "1 expression: 0 errors, 0 warnings" in linted.err
    week = ("-f", "-", "--from", "2026-11-23T00:00:00Z", "-o", "json")
    forecast = await ctl("cron", "forecast", *week)
    assert (forecast.code, forecast.data["schedules"], forecast.data["runs"]) == (0, 1, 7)
    assert (await ctl("cron", "collide", *week)).data["schedules"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "*/5 * * * * /bin/x: y\n",
        "MAILTO=ops\n0 5 * * * echo a: b\n",
        "# name: x\n@daily /bin/x\n",
        "-0 5 L * * /bin/x\n",
        "0 5 * * sun echo '{'\n",
    ],
)
def test_a_crontab_is_never_read_as_yaml(text: str) -> None:
    assert kind_of(text) is FileKind.CRONTAB
    (fault,) = manifests.parse("x.yaml", text)
    assert isinstance(fault, manifests.ManifestFault)
    assert "is a crontab" in fault.problem


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("cron: @daily", '"@daily"'),
        ("cron: */5 * * * *", '"*/5 * * * *"'),
        ("cron: [ @daily, x ]", '"@daily"'),
        ("cron: `x`", '"`x`"'),
    ],
)
def test_an_expression_that_yaml_cant_begin_with_is_refused_with_the_quotes(
    line: str, quoted: str
) -> None:
    (fault,) = manifests.parse("x.yaml", f"name: a\n{line}\nshell: {{argv: [x]}}\n")
    assert isinstance(fault, manifests.ManifestFault)
    assert fault.where == "x.yaml:2"
    assert quoted in fault.hint
