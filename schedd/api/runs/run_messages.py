"""Event messages of runs: each is built once for all streams that send it."""

from weakref import WeakKeyDictionary

from schedd.api import views
from schedd.core.runs.change_stream import Change
from schedproto.v1 import run_pb2
from schedproto.v1.run_service_pb2 import RunEvent


class RunMessages:
    """The event messages of changes, kept as long as their changes are referenced."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[Change, tuple[bytes, RunEvent]] = WeakKeyDictionary()

    def of(self, change: Change, progress: run_pb2.RunProgress | None, cursor: str) -> RunEvent:
        """Return the event of a change, with its cursor. It is shared: don't modify it."""
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
