"""Find dispatched runs that certainly never started, by their workers' heartbeats to any member."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from schedd.core.ids import IncarnationId
from schedd.core.runs.model import LiveRun
from schedd.dispatch.workers.remote_workers import LastHeartbeat, RemoteWorkers

ASK_AFTER: Final = timedelta(seconds=1)
"""Time past `start_by` before other members are asked: a heartbeat confirms most runs by then."""

MOST_ASKED: Final = 8
"""Workers that one scan asks about at most; later scans ask about the others."""


class StartConfirmation:
    """Asks the other members about workers that are silent here, once each.

    Workers with long runs are asked about as long as they run. So the number of questions is
    limited, and workers take turns.
    """

    def __init__(self) -> None:
        self._last = b""

    async def never_started(
        self,
        runs: Collection[LiveRun],
        said: Mapping[IncarnationId, LastHeartbeat | None],
        speaking: Collection[IncarnationId],
        elsewhere: RemoteWorkers,
        now: datetime,
    ) -> list[LiveRun]:
        """Return the runs that certainly never started, by a heartbeat of their running worker.

        The heartbeat was stamped after `start_by` and doesn't list the assignment. `said`: last
        heartbeats of workers attached here; `speaking`: those of these workers that aren't silent.
        """
        asked = self._whose_turn(
            {
                run.incarnation
                for run in runs
                if run.incarnation is not None
                and run.incarnation not in speaking
                and run.start_by is not None
                and run.start_by < now - ASK_AFTER
            }
        )
        async with asyncio.TaskGroup() as group:
            answers = {
                each: group.create_task(elsewhere.last_heartbeat(each), name=f"heartbeat of {each}")
                for each in asked
            }
        received = {each: beat for each, task in answers.items() if (beat := task.result())}
        heartbeats = {**said, **received}
        return [
            run
            for run in runs
            if run.incarnation is not None
            and (last := heartbeats.get(run.incarnation)) is not None
            and last.never_started(run)
        ]

    def _whose_turn(self, away: Collection[IncarnationId]) -> list[IncarnationId]:
        asked = sorted(away, key=lambda one: (one <= self._last, one))[:MOST_ASKED]
        if asked:
            self._last = asked[-1]
        return asked
