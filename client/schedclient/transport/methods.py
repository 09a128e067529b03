"""The calls of the API, each named after its request, and whether a retry is safe."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

READS: Final = ("Get", "List", "Explain", "Check", "Watch", "Read")
"""Prefixes of the calls that change nothing."""
TRIALS: Final = ("dry_run", "validate_only")
"""Fields that turn a change into a dry run."""
UNSENT: Final = (
    "CreateToken DeleteCalendar DeleteJob DeletePool DiscardDeadLetters RebalanceCluster SetPool"
    " TransferLeader UpdateJob"
)
"""Calls that may be retried only if the first try surely wasn't sent: a retry would create another
object, conflict with the version that the first try wrote, or select more. Any other call is a
read, or an idempotent change.
"""
RESUMED: Final = "ReadLogs WatchBackfill WatchRedrive WatchRuns WatchWorker"
"""Streams that their reader resumes if they break."""
LONG: Final = (
    "BackfillJob BatchCreateJobs BatchSubmitRuns CheckCluster DeleteJob DiscardDeadLetters"
    " PauseCluster PauseJob PausePool RebalanceCluster RedriveDeadLetters ResumeCluster ResumeJob"
    " ResumePool SetPool TransferLeader UpdateJob"
)
"""Calls that write many rows, or wait until a job starts no run any more (a start_by is 5 s)."""
_TIMEOUTS: Final = {**dict.fromkeys(LONG.split(), 12.0), "ApplyCalendar": 60.0}
"""Seconds for one try, 5 if not listed. A change of a calendar updates every job that uses it."""


@dataclass(frozen=True, slots=True)
class Method:
    """A call. `answer`: the class of its answer. `repeatable`: whether a retry is always safe.
    `resumed`: whether the reader of this stream resumes it. `try_timeout`: seconds for one try
    while other endpoints remain.
    """

    name: str
    path: str
    answer: Any
    repeatable: bool
    resumed: bool
    try_timeout: float

    def reads(self, request: Message) -> bool:
        tried = any(getattr(request, field, False) for field in TRIALS)
        return tried or self.name.startswith(READS)


@cache
def method_of(request: Descriptor) -> Method:
    """Return the call of a request. Its service is in the proto file of the request."""
    [service] = request.file.services_by_name.values()
    name = request.name.removesuffix("Request")
    return Method(
        name,
        f"/{service.full_name}/{name}",
        GetMessageClass(service.methods_by_name[name].output_type),
        repeatable=name not in UNSENT.split(),
        resumed=name in RESUMED.split(),
        try_timeout=_TIMEOUTS.get(name, 5.0),
    )
