"""Overlap: what happens to a run while another run of its job hasn't ended
(docs/semantics/overlap.md).

    admitted   a run that had a token and hasn't ended: RUNNING, RETRYING, or returned to PENDING.
               A run that was returned while it was pre-dispatched isn't admitted: it waits
    waiting    PENDING without a token, and ready
    order      by due time, then scheduled time, then id: the run that is due later is newer
    apart      from a backfill with ALLOW, or a broadcast's child: it blocks no other run, and no
               other run blocks it

A run follows the policy of its job's newest definition, unless its trigger named another.
`schedd/store/dispatch/assign.py` and `schedd/store/dispatch/overlap.py` decide by rows and are
authoritative. This module has the rules that they share with the owner's loops.
"""

from typing import Final

from schedd.core.jobs.definition import Definition, Overlap
from schedd.core.runs.model import LiveRun

BUFFERS: Final = {Overlap.BUFFER_ONE: 1, Overlap.BUFFER_ALL: 1_000}
"""The most runs that wait while another is admitted. Further runs end (BUFFER_FULL)."""

REPLACES: Final = frozenset({Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER})
"""Policies under which the newest run ends the others."""

LINED_UP: Final = REPLACES.union(BUFFERS)
"""Policies that can end a waiting run even while no slot is free."""

WAITS_LONG: Final = 3.0
"""Seconds after which a waiting run under SKIP ends newer scheduled runs that wait behind it."""


def limit_of(definition: Definition) -> int:
    """Return how many runs of the job may be admitted at once; 0: no limit."""
    return definition.overlap_limit if definition.overlap is Overlap.ALLOW else 1


def policy_of(run: LiveRun, definition: Definition) -> Overlap:
    """Return the overlap policy of a run: its trigger's, or else its job's."""
    return run.overlap or definition.overlap
