"""A job that no running worker can take is created with a warning."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from schedclient import SyncClient
from support.cluster import DevCluster


@pytest.fixture(scope="module")
def cluster(pair: DevCluster) -> DevCluster:
    """A worker without handlers and labels runs."""
    return pair


@pytest.fixture(scope="module")
def client(cluster: DevCluster) -> Iterator[SyncClient]:
    with SyncClient(cluster.record["members"][0]["grpc"]) as made:
        yield made


def test_a_job_that_a_worker_can_take_has_no_warning(client: SyncClient) -> None:
    job = client.jobs.create("fits", every="1h", shell={"script": "true"})
    assert job.warnings == ()


def test_a_handler_that_no_running_worker_has_is_named(client: SyncClient) -> None:
    job = client.jobs.create("mail", every="1h", python={"handler": "send_mail"})
    [warning] = job.warnings
    assert "'send_mail'" in warning or "python" in warning
    assert client.jobs.get("mail").name == "mail", "the job was created"


def test_late_instants_that_would_be_skipped_are_warned_of(client: SyncClient) -> None:
    every = {"every": "1h", "shell": {"script": "true"}, "catch_up": {"policy": "all"}}
    [warning] = client.jobs.create("orders", **every).warnings
    assert "all but one at a time are skipped" in warning
    assert client.jobs.create("queued", overlap="buffer_all", **every).warnings == ()


def test_labels_that_no_running_worker_has_are_named_on_create_and_on_edit(
    client: SyncClient,
) -> None:
    wanted = {"shell": {"script": "true"}, "require": {"gpu": ["yes"]}}
    [warning] = client.jobs.create("labelled", every="1h", **wanted).warnings
    assert "gpu=yes" in warning
    client.jobs.create("edited", every="1h", shell={"script": "true"})
    [warning] = client.jobs.update("edited", require={"gpu": ["yes"]}).warnings
    assert "gpu=yes" in warning


def test_too_many_slots_are_named_and_each_job_of_a_batch_is_judged(client: SyncClient) -> None:
    shell = {"script": "true"}
    fits, large = client.jobs.create_many(
        [
            {"name": "one", "every": "1h", "shell": shell},
            {"name": "large", "every": "1h", "shell": shell, "slots": 900},
        ]
    )
    assert fits.warnings == ()
    assert "900 slots" in large.warnings[0]


def test_schedctl_prints_the_warning_on_stderr_for_create_and_apply(
    cluster: DevCluster, tmp_path: Path
) -> None:
    options = ("--every", "1h", "--require", "zone=moon", "--", "true")
    made = cluster.schedctl("job", "create", "moon", *options)
    assert made.returncode == 0, made.stderr
    assert "warning: job moon: no running worker" in made.stderr
    manifest = tmp_path / "job.yaml"
    manifest.write_text("name: mars\nevery: 1h\nrequire: {zone: [mars]}\nshell: {script: 'true'}\n")
    applied = cluster.schedctl("apply", "-f", str(manifest))
    assert applied.returncode == 0, applied.stderr
    assert "warning: job mars: no running worker" in applied.stderr


def test_rest_returns_the_warning_in_the_body(cluster: DevCluster) -> None:
    body = {
        "name": "rest",
        "every": "3600s",
        "require": {"zone": ["moon"]},
        "shell": {"script": "x"},
    }
    request = urllib.request.Request(
        f"http://{cluster.record['members'][0]['http']}/api/v1/jobs",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert "zone=moon" in json.load(answer)["warnings"][0]


def test_without_any_running_worker_the_warning_says_so(
    cluster: DevCluster, client: SyncClient
) -> None:
    cluster.terminate("w1")
    [warning] = client.jobs.create("alone", every="1h", shell={"script": "true"}).warnings
    assert "no worker is running" in warning
