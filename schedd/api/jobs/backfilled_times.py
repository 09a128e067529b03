"""What backfills made of one instant, in words: beside what its own row says, not in its stead."""

from collections.abc import Sequence
from datetime import datetime

from schedd.api.services import Services
from schedd.core.ids import JobId
from schedd.core.runs.lifecycle import LIVE
from schedd.core.runs.run_records import RunRecord


async def backfilled(
    services: Services, job_id: JobId, at: datetime
) -> tuple[str, Sequence[RunRecord]]:
    """The sentences, each after a blank, and the runs they are of; empty: there are none."""
    made, to_come = await services.backfills.of_instant(job_id, at)
    told = "".join(f" {_run(one)}" for one in made)
    if to_come is not None:
        told += f" Backfill {to_come} is to run it: no run of that is made yet."
    return told, made


def _run(record: RunRecord) -> str:
    run = record.run
    stands = f"is {run.state}" + (f" ({record.reason})" if record.reason else "")
    now = ", as it stands now" if run.state in LIVE else ""
    return f"Backfill {record.backfill} made run {run.key.run_id} for it, which {stands}{now}."
