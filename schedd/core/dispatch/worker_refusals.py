"""Classify why a worker takes no new runs, by the text in its heartbeat.

The protocol has only this text. `OTHER` is for the texts of other versions.
"""

from typing import Final

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a worker takes no new runs. `state`: for STATE in `worker list`; `check`: the doctor's
    check; `why`: the consequence.
    """

    state: str
    check: str
    why: str
    remedy: str
    """`{worker}` is the name of the worker."""

    def remedy_for(self, worker: str) -> str:
        return self.remedy.format(worker=worker)


_UNSPOOLED: Final = "this worker takes no new runs, and loses its unstored results if it stops"
NO_SPACE: Final = Refusal(
    "FULL",
    "spool",
    _UNSPOOLED,
    "free space on the spool's disk (`df -h`, `df -i`), or raise the disk quota of workerd's user",
)
UNWRITABLE: Final = Refusal(
    "UNWRITABLE",
    "spool",
    _UNSPOOLED,
    "make the spool directory writable: check that its file system isn't mounted read-only, the"
    " permissions of workerd's user, and the disk (kernel log)",
)
AT_LIMIT: Final = Refusal(
    "FULL",
    "spool",
    "this worker takes no new runs until members accept the results in its spool",
    "check that this worker reaches a member, and that members reach PostgreSQL: accepted results"
    " leave the spool",
)
UPLOADS: Final = Refusal(
    "FULL",
    "spool",
    "this worker takes no new runs until the result store accepts uploads",
    "check that this worker reaches the result store; its log shows why uploads fail",
)
MEMORY: Final = Refusal(
    "FULL",
    "spool",
    _UNSPOOLED,
    "check the disk of the spool, which is too slow or rejects writes; see the log of this worker",
)
BLOCKED: Final = Refusal(
    "BLOCKED",
    "handlers",
    "this worker takes no new runs, because all its event loops are blocked",
    "1. pause the jobs of the handler (`schedctl job pause JOB`) until the handler uses `await` or"
    " is a plain `def`; 2. cancel their runs, which would block workers again (`schedctl run list"
    " --state RUNNING --worker {worker}`, `schedctl run list --state PENDING --job JOB`, `schedctl"
    " run cancel RUN`); 3. run `schedctl worker drain {worker}`, restart workerd, and run"
    " `schedctl worker undrain {worker}`",
)
OTHER: Final = Refusal(
    "REFUSING", "new runs", "this worker takes no new runs", "see the log of this worker"
)

_REJECTED: Final = ("spool rejects writes: ", "process journal can't be written: ")
_KINDS: Final = (
    ("handlers block all ", BLOCKED),
    ("spool holds ", AT_LIMIT),
    (" wait in the spool for the result store", UPLOADS),
    (" wait in memory for the disk of the spool", MEMORY),
)


def refusal_of(text: str) -> Refusal:
    """Return the kind of the reason `text` of a worker."""
    if text.startswith(_REJECTED):
        no_space = "No space left" in text or "quota exceeded" in text.lower()
        return NO_SPACE if no_space else UNWRITABLE
    return next((kind for part, kind in _KINDS if part in text), OTHER)
