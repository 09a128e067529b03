"""The spool on a real directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedkit.errors import Misconfigured
from schedproto.v1 import worker_service_pb2 as pb
from workerd.spool import Spool


def result(run: str) -> pb.Result:
    return pb.Result(key=pb.AssignmentKey(run_id=run, fencing_token=1))


def test_what_was_written_is_found_by_the_next_process_in_order(tmp_path: Path) -> None:
    first = Spool(tmp_path)
    first.write([result("a"), result("b")])
    first.write([result("c")])
    first.close()
    second = Spool(tmp_path)
    assert second.id == first.id
    loaded = second.load()
    assert [each.key.run_id for _, batch in loaded for each in batch] == ["a", "b", "c"]
    assert second.write([result("d")]).name > loaded[-1][0].name


def test_a_batch_leaves_with_its_last_result(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    file = spool.write([result("a"), result("b")])
    spool.acknowledged([file])
    assert file.exists()
    spool.acknowledged([file])
    assert not file.exists()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(Misconfigured, match="in use"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_what_was_half_written_is_no_batch(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    (tmp_path / "000000000009.results.new").write_bytes(b"half")
    assert spool.load() == []
