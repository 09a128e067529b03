"""Classify why a worker takes no new runs, by the text in its heartbeat.

The protocol has only this text. `OTHER` is for the texts of other versions.
"""

from __future__ import annotations

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


_UNSPOOLED: Final = (
    "this worker takes no new runs; a result that can't be spooled is lost if it stops"
)
NO_SPACE: Final = Refusal(
    "FULL",
    "spool",
    _UNSPOOLED,
    "free space on its disk (`df -h`, `df -i`), or raise the disk quota of its user",
)
UNWRITABLE: Final = Refusal(
    "UNWRITABLE",
    "spool",
    _UNSPOOLED,
    "make its spool directory writable: check its mount (read-only?), the permissions of workerd's"
    " user, and the disk (kernel log)",
)
AT_LIMIT: Final = Refusal(
    "FULL",
    "spool",
    "this worker takes no new runs until members accept the results in its spool",
    "check that it reaches a member, and that members reach PostgreSQL: accepted results leave the"
    " spool",
)
UPLOADS: Final = Refusal(
    "FULL",
    "spool",
    "this worker takes no new runs until the result store accepts uploads",
    "check that it reaches the result store; its log says why uploads fail",
)
MEMORY: Final = Refusal(
    "FULL",
    "spool",
    _UNSPOOLED,
    "check the disk of its spool: it is too slow, or takes no writes; see the log of this worker",
)
BLOCKED: Final = Refusal(
    "BLOCKED",
    "handlers",
    "this worker takes no new runs, because all its event loops are blocked",
    "pause the jobs of the handler (`schedctl job pause JOB`) until it uses `await` or is a plain"
    " `def`; cancel the handler's running and waiting runs (`schedctl run list --state RUNNING"
    " --worker {worker}`, `schedctl run list --state PENDING --job JOB`, `schedctl run cancel"
    " RUN`), else they block this or another worker; then `schedctl worker drain {worker}`, restart"
    " this worker, `schedctl worker undrain {worker}`",
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
