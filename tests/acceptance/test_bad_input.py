"""Bad input through `schedctl`: three lines say what, why and what to do; nothing is stored."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from support.cluster import DevCluster

USAGE, CONFLICT = 2, 5
"""Exit codes: INVALID_ARGUMENT, and ALREADY_EXISTS."""
QUICKLY = 20.0
"""Seconds for a refusal, Python's start-up on a busy machine in them."""
LARGEST_PAYLOAD = 256 * 1024


@pytest.fixture(scope="module")
def before(quiet_cluster: DevCluster) -> list[tuple[str, int]]:
    done = quiet_cluster.schedctl("job", "create", "taken", "--on-demand", "--", "true")
    assert done.returncode == 0, done.stderr
    return stored(quiet_cluster)


def stored(cluster: DevCluster) -> list[tuple[str, int]]:
    return [(job["name"], job["generation"]) for job in cluster.json("job", "list")]


def assert_refused(
    done: subprocess.CompletedProcess[str], code: int, reason: str, *said: str
) -> None:
    """Exactly three lines on stderr, in their order, nothing on stdout, this exit code."""
    lines = done.stderr.splitlines()
    assert [line[:7] for line in lines] == ["error: ", "  why: ", "  try: "], done.stderr
    assert all(line[7:].strip() for line in lines), done.stderr
    assert reason in lines[1]
    for words in said:
        assert words in done.stderr
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--cron", "61 * * * *"], "61", id="a minute of 61"),
        pytest.param(["--cron", "* * * *"], "* * * *", id="four fields"),
        pytest.param(["--cron", "0 0 31 2 *"], "0 0 31 2 *", id="an expression that never matches"),
        pytest.param(
            ["--cron", "0 2 * * *", "--tz", "Europe/Berln"], "Europe/Berln", id="an unknown zone"
        ),
        pytest.param(["--every", "90"], "90", id="a length without a unit"),
    ],
)
def test_a_wrong_schedule_is_refused(
    quiet_cluster: DevCluster, before: list[tuple[str, int]], flags: list[str], said: str
) -> None:
    began = time.monotonic()
    done = quiet_cluster.schedctl("job", "create", "wrong", *flags, "--", "true")
    assert time.monotonic() - began < QUICKLY
    assert_refused(done, USAGE, "INVALID_ARGUMENT", said)
    assert stored(quiet_cluster) == before


def test_a_name_that_is_taken_is_refused(
    quiet_cluster: DevCluster, before: list[tuple[str, int]]
) -> None:
    done = quiet_cluster.schedctl("job", "create", "taken", "--every", "1h", "--", "false")
    assert_refused(done, CONFLICT, "ALREADY_EXISTS", "taken")
    assert stored(quiet_cluster) == before
    assert quiet_cluster.json("job", "get", "taken")["onDemand"] is True


def test_an_unknown_field_of_a_manifest_is_refused_with_its_place_and_a_suggestion(
    quiet_cluster: DevCluster, before: list[tuple[str, int]], tmp_path: Path
) -> None:
    manifest = tmp_path / "jobs.yaml"
    manifest.write_text(
        "name: first-is-fine\n"
        'cron: "0 2 * * *"\n'
        "shell: {argv: [/bin/true]}\n"
        "---\n"
        "name: second\n"
        "every: 1h\n"
        "shell: {argv: [/bin/true]}\n"
        "timeot: 5m\n"
    )
    done = quiet_cluster.schedctl("apply", "-f", str(manifest))
    assert_refused(done, USAGE, "INVALID_ARGUMENT", "timeot", "timeout", "jobs.yaml:8")
    assert stored(quiet_cluster) == before, "the first of the two neither"


def test_a_manifest_that_only_the_cluster_can_judge_is_refused_as_a_whole(
    quiet_cluster: DevCluster, before: list[tuple[str, int]], tmp_path: Path
) -> None:
    manifest = tmp_path / "jobs.yaml"
    manifest.write_text(
        "{name: fine, every: 1h, shell: {argv: [/bin/true]}}\n---\n"
        '{name: never, cron: "0 0 31 2 *", shell: {argv: [/bin/true]}}\n'
    )
    done = quiet_cluster.schedctl("apply", "-f", str(manifest))
    assert_refused(done, USAGE, "INVALID_ARGUMENT", "0 0 31 2 *")
    assert stored(quiet_cluster) == before


def test_a_payload_that_is_too_large_is_refused(
    quiet_cluster: DevCluster, before: list[tuple[str, int]], tmp_path: Path
) -> None:
    payload = tmp_path / "payload"
    payload.write_text('"' + "x" * LARGEST_PAYLOAD + '"')
    flags = ["--payload", f"@{payload}"]
    submitted = quiet_cluster.schedctl("submit", "--name", "too-large", *flags, "--", "true")
    assert_refused(submitted, USAGE, "INVALID_ARGUMENT", "262,144")
    assert quiet_cluster.json("run", "list", "--job", "too-large") == []
    created = quiet_cluster.schedctl(
        "job", "create", "too-large", "--on-demand", *flags, "--", "true"
    )
    assert_refused(created, USAGE, "INVALID_ARGUMENT", "262,144")
    assert stored(quiet_cluster) == before
