"""The kind of each reason for which a worker takes no new runs, by the worker's own texts."""

from __future__ import annotations

import errno
import os

import pytest

from schedd.core.dispatch import worker_refusals as kinds
from schedd.core.dispatch.worker_refusals import Refusal, refusal_of
from workerd.delivery.result_upload import Backlog


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, kinds.NO_SPACE),
        (errno.EDQUOT, kinds.NO_SPACE),
        (errno.EROFS, kinds.UNWRITABLE),
        (errno.EACCES, kinds.UNWRITABLE),
        (errno.EIO, kinds.UNWRITABLE),
    ],
)
@pytest.mark.parametrize("what", ["spool rejects writes", "process journal can't be written"])
def test_an_error_of_the_disk_is_a_lack_of_space_or_an_unwritable_spool(
    what: str, number: int, kind: Refusal
) -> None:
    assert refusal_of(f"{what}: {os.strerror(number)}") is kind


def test_a_backlog_of_results_is_of_the_result_store_or_of_the_disk() -> None:
    backlog = Backlog(memory=1, disk=1)
    with backlog.holding(disk=1):
        assert refusal_of(backlog.refusal_reason) is kinds.UPLOADS
    with backlog.holding(memory=1):
        assert refusal_of(backlog.refusal_reason) is kinds.MEMORY


def test_a_spool_at_its_limit_isnt_a_full_disk() -> None:
    kind = refusal_of("spool holds 9 bytes: above the limit of 8 bytes")
    assert kind is kinds.AT_LIMIT
    assert "disk" not in kind.remedy


def test_blocked_loops_and_texts_of_other_versions_have_kinds() -> None:
    assert refusal_of("handlers block all 8 event loops of this worker: h").state == "BLOCKED"
    assert refusal_of("lunch").state == "REFUSING"


def test_only_lack_of_room_is_called_full() -> None:
    full = {kinds.NO_SPACE, kinds.AT_LIMIT, kinds.UPLOADS, kinds.MEMORY}
    assert {each.state for each in full} == {"FULL"}
    assert "FULL" not in {each.state for each in (kinds.UNWRITABLE, kinds.BLOCKED, kinds.OTHER)}
