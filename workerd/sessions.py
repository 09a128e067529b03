"""The sessions of the jobs that run: written down for the keeper, watched for orphans.

Invariants
- A session is written down before anything else is done with its first process, and struck out
  when its attempt has ended and its group was killed.
"""

from __future__ import annotations

import logging

from workerd import procs
from workerd.core.ids import Key
from workerd.journal import Journal
from workerd.orphans import Orphans

log = logging.getLogger(__name__)


class Sessions:
    """What executors that start processes report to."""

    def __init__(self, journal: Journal, orphans: Orphans) -> None:
        self._journal = journal
        self._orphans = orphans

    @property
    def mark(self) -> str:
        """The value of `procs.MARK` for each first process."""
        return self._journal.mark

    def began(self, pid: int, key: Key) -> None:
        """The first process of an attempt lives, as leader of its session.

        Raises:
            OSError: it can't be written down; nothing is known of it then.
        """
        process = procs.look(pid)
        assert process is not None, "a child that nobody has reaped has an entry"
        self._journal.began(pid, process.start)
        self._orphans.began(pid, key.run, key.token)

    def ended(self, pid: int) -> None:
        """It was reaped, and its group killed."""
        self._orphans.ended(pid)
        try:
            self._journal.ended(pid)
        except OSError as error:  # a full disk: the entry stays, and names a process that is gone
            log.warning("the end of session %d can't be written down: %s", pid, error)
