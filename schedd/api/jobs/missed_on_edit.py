"""What an edit or a deletion leaves out of a schedule, counted once it is stored.

The transaction asks for the row that accounts for it, anew each time that it is begun anew; only
the last answer was stored, and only if the call went well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

from schedd.api.budgeted_calls import too_expensive
from schedd.core.events import Emit, RunsMissed
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import NewRun
from schedd.core.schedule.work_budget import OF_CALL, TooMuchWork, limited

P = ParamSpec("P")


class MissedOnEdit(Generic[P]):
    """Stands in for the function that says which row accounts for it."""

    def __init__(self, row_of: Callable[P, NewRun | None], emit: Emit) -> None:
        self._row_of = row_of
        self._emit = emit
        self._row: NewRun | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> NewRun | None:
        """The row, to be stored."""
        try:
            with limited(OF_CALL):
                self._row = self._row_of(*arguments, **named)
        except TooMuchWork as error:
            raise too_expensive() from error
        return self._row

    def stored(self) -> None:
        """It is: tell how many instants are MISSED by it."""
        row = self._row
        if row is not None and row.state is State.MISSED and row.reason is not None:
            self._emit(RunsMissed(row.reason, row.count))
