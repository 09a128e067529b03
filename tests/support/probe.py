"""Jobs that write down, outside of the system, that they ran: what a test believes over any row.

    probe = Probe(tmp_path / "ticks")
    client.jobs.create("ticks", cron="* * * * * *", shell=probe.shell())
    probe.starts()

Each start of a job is one line, appended by one write before anything else is done, so lines of
jobs that start at once never mix and a job that is killed has still written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from schedclient import Shell

_LINE = (
    'echo "$SCHEDD_RUN_ID $SCHEDD_SCHEDULED_AT $(date +%s.%N) $SCHEDD_FENCING_TOKEN'
    ' $SCHEDD_ATTEMPT $SCHEDD_WORKER $$ ${SCHEDD_JOB:--}" >>"$PROBE"'
)


@dataclass(frozen=True, slots=True)
class Start:
    """A start, as the job itself recorded it. `at`: seconds of the epoch by the host's clock."""

    run_id: str
    scheduled_at: datetime
    at: float
    token: int
    attempt: int
    worker: str
    pid: int
    job: str

    @property
    def lateness(self) -> float:
        """Seconds past the nominal instant; less than zero is early."""
        return self.at - self.scheduled_at.timestamp()


class DatabaseProbe:
    """A file that any number of jobs append to."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def shell(self, then: str = "", *, before: str = "") -> Shell:
        """Return an action that writes its start, then runs the shell commands `then`."""
        script = f"{before}\n{_LINE}\n{then}"
        return {"argv": ["/bin/sh", "-c", script], "env": {"PROBE": str(self.file)}}

    def starts(self, run_id: str | None = None) -> list[Start]:
        """All starts so far, in the order in which they were written."""
        if not self.file.exists():
            return []
        lines = self.file.read_text().splitlines()
        starts = [_read(line) for line in lines]
        return [start for start in starts if run_id in (None, start.run_id)]

    def repeated(self) -> list[str]:
        """Runs that were started more than once."""
        counts = Counter(start.run_id for start in self.starts())
        return [run_id for run_id, count in counts.items() if count > 1]


def _read(line: str) -> Start:
    run_id, scheduled_at, at, token, attempt, worker, pid, job = line.split()
    return Start(
        run_id,
        datetime.fromisoformat(scheduled_at),
        float(at),
        int(token),
        int(attempt),
        worker,
        int(pid),
        job,
    )
