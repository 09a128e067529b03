"""Count the scheduled times that an edit or deletion leaves unfired, once the row is stored.

The transaction calls for the row again at each retry; only the last row is stored, and only if the
call succeeds.
"""

from collections.abc import Callable
from typing import Generic, ParamSpec

from schedd.api.budgeted_calls import too_expensive
from schedd.core.events import Emit, RunsMissed
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import NewRun
from schedd.core.schedule.work_budget import OF_CALL, TooMuchWork, limited

P = ParamSpec("P")


class MissedOnEdit(Generic[P]):
    """Wrap the function that returns the row, and remember its last result."""

    def __init__(self, row_of: Callable[P, NewRun | None], emit: Emit) -> None:
        self._row_of = row_of
        self._emit = emit
        self._row: NewRun | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> NewRun | None:
        try:
            with limited(OF_CALL):
                self._row = self._row_of(*arguments, **named)
        except TooMuchWork as error:
            raise too_expensive() from error
        return self._row

    def stored(self) -> None:
        """Report the number of MISSED scheduled times, after the row was stored."""
        row = self._row
        if row is not None and row.state is State.MISSED and row.reason is not None:
            self._emit(RunsMissed(row.reason, row.count))
