"""What a worker keeps beside rows, in a folder of its spool."""

from __future__ import annotations

from schedkit.objects.files import Files
from workerd.config import Results
from workerd.delivery.result_upload import Keeping
from workerd.delivery.spool import Spool
from workerd.logs.attempt_log import Folder
from workerd.metrics import Metrics


def keeping_in(spool: Spool) -> Keeping:
    """With the settings that a worker has unless told otherwise."""
    objects = Files(spool.directory / "results")
    return Keeping(objects, Folder(spool.kept, 1 << 30), Results(), Metrics())
