"""Invalid settings of a worker are reported before it starts."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

import pytest

from schedkit.config.loader import Untimely
from workerd.config import WorkerConfig, WorkerResultStore
from workerd.executors.python import is_there


def faults_of(spool: Path) -> list[str]:
    config = WorkerConfig(("localhost:1",), spool, name="w1")
    return [str(each) for each in (*config.faults(), *config.unmade())]


def test_a_check_does_not_create_the_spool(tmp_path: Path) -> None:
    assert faults_of(tmp_path / "a/b/spool") == []
    assert faults_of(tmp_path) == []
    assert [*tmp_path.iterdir()] == []


def test_a_spool_that_cannot_be_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for wrong in ("file", "link", "file/below", "x" * 300):
        spool = tmp_path / wrong
        [said] = faults_of(spool)
        assert said.startswith(f"spool: {spool} can't be "), said
    [said] = faults_of(Path("/proc/spool"))
    assert said == "spool: /proc/spool can't be created or written: No such file or directory"


def test_a_check_leaves_no_trace_in_a_spool_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *how, **_: made.append(how))
    assert [*WorkerConfig(("localhost:1",), tmp_path, name="w1").faults()] == []
    assert made == []


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EDQUOT])
def test_a_worker_whose_disk_is_full_may_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    def no_room(*_: object, **__: object) -> str:
        raise OSError(why, os.strerror(why))

    (tmp_path / "spool_id").touch()
    monkeypatch.setattr(tempfile, "mkdtemp", no_room)
    assert faults_of(tmp_path) == [], "delivery of its spooled results makes room"


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EDQUOT])
def test_a_new_worker_must_store_its_id_and_may_start_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """A disk without room for a byte still takes folders."""

    def sync(_: int) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "fsync", sync)
    spool = tmp_path / "spool"
    [problem] = WorkerConfig(("localhost:1",), spool, name="w1").unmade()
    assert isinstance(problem, Untimely)
    assert str(problem) == f"spool: {spool} can't be created or written: {os.strerror(why)}"
    assert [*tmp_path.iterdir()] == []


def test_an_invalid_result_store_is_reported_without_its_password(tmp_path: Path) -> None:
    for url in ("nosuch://k:s3cr3t@b/p", "results", "file://here"):
        config = WorkerConfig(("localhost:1",), tmp_path, name="w1", results=WorkerResultStore(url))
        [said] = map(str, config.faults())
        assert said.startswith("results.url: the result store ")
        assert "s3cr3t" not in said


def test_a_module_is_searched_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_of_these").mkdir()
    for name in ("__init__", "jobs"):
        (tmp_path / "package_of_these" / f"{name}.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_there("package_of_these.jobs")
    assert not is_there("package_of_these.others")
    assert not is_there("package_of_these.jobs.more")
    assert not is_there("no.such.module")
    assert is_there("json.decoder")
    assert "package_of_these" not in sys.modules


def test_label_keys_must_be_valid_in_a_job(tmp_path: Path) -> None:
    labels = {"": "v", "a b": "x", "zone/eu": "1", "GPU": "", "é": "x"}
    said = [*map(str, WorkerConfig(("localhost:1",), tmp_path, name="w1", labels=labels).faults())]
    assert said == [
        f"labels: {key!r} isn't a label's key: letters, digits, '.', '_', '-', '/'"
        for key in ("", "a b", "é")
    ]


def test_a_member_address_must_have_a_port(tmp_path: Path) -> None:
    config = WorkerConfig(("localhost:1", "127.0.0.1:0"), tmp_path, name="w1")
    assert [*map(str, config.faults())] == ["endpoints: 127.0.0.1:0: port 0 isn't a valid port"]


@pytest.mark.parametrize("address", ["u:s3cr3t@h:1", "u:s3cr3t,x@h:1", "u:x,s3cr3t,y@h:1"])
def test_a_member_address_with_a_user_is_not_repeated_in_the_error(
    address: str, tmp_path: Path
) -> None:
    """A variable is split at its commas, those of a password too."""
    config = WorkerConfig(("localhost:1", *address.split(",")), tmp_path, name="w1")
    said = "endpoints: no address takes a user or password: one has an @ in it"
    assert [*map(str, config.faults())] == [said]
