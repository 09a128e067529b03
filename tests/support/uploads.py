"""Uploads of a worker's large results, in a folder of its spool."""

from __future__ import annotations

from schedkit.objects.files import Files
from workerd.config import WorkerResultStore
from workerd.delivery.result_upload import ResultUpload
from workerd.delivery.spool import Spool
from workerd.logs.attempt_log import AttemptLogFolder
from workerd.metrics import WorkerMetrics


def upload_in(spool: Spool) -> ResultUpload:
    """Return uploads with the default settings of a worker."""
    objects = Files(spool.directory / "results")
    return ResultUpload(
        objects,
        AttemptLogFolder(spool.upload_directory, 1 << 30),
        WorkerResultStore(),
        WorkerMetrics(),
    )
