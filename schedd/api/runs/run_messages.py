"""Events that tell of runs: each made once for all who are told the same."""

from weakref import WeakKeyDictionary

from schedd.api import views
from schedd.core.runs.change_stream import Change
from schedproto.v1 import run_pb2
from schedproto.v1.run_service_pb2 import RunEvent


class RunMessages:
    """The events of changes, for as long as somebody has the change."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Change, tuple[bytes, RunEvent]] = WeakKeyDictionary()

    def of(self, change: Change, progress: run_pb2.RunProgress | None, cursor: str) -> RunEvent:
        """The run as people see it, with the cursor after which one goes on. Not to be changed."""
        further = b"" if progress is None else progress.SerializeToString()
        before = self._made.get(change)
        if before is not None and before[0] == further:
            if before[1].cursor == cursor:
                return before[1]
            event = RunEvent(run=before[1].run, cursor=cursor)
        else:
            event = RunEvent(run=views.run_message(change.record, progress), cursor=cursor)
        self._made[change] = further, event
        return event
