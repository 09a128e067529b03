"""The files of a benchmark's cluster."""

import tempfile
from pathlib import Path

import pytest

from bench.rig import bench_cluster
from support.postgres import MEMORY, is_in_memory


def test_a_benchmark_is_refused_where_files_are_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not MEMORY.is_dir():
        pytest.skip("this machine has no file system in memory")
    assert is_in_memory(MEMORY / "folder" / "file")
    assert not is_in_memory(Path("/proc"))
    monkeypatch.setattr(tempfile, "tempdir", str(MEMORY))
    with (
        pytest.raises(OSError, match="is in memory: set TMPDIR to a folder on a disk"),
        bench_cluster(members=1, workers=1, slots=1),
    ):
        pass
