"""Overlap: what happens to a run while another one of its job hasn't ended.

    admitted   it has had a token and hasn't ended: RUNNING, RETRYING, or given back to PENDING,
               but for one that was armed: it waits, as before
    waiting    PENDING without a token, and ready
    order      by due instant, then nominal instant, then id: what fell due later is newer
    apart      of a backfill with ALLOW, or a broadcast's child: it blocks no other run, and no
               other run blocks it

    SKIP                 goes if none is admitted, else ends; ends too while an older one has waited
                         for WAITS_LONG, so runs don't pile up while no worker can take them
    ALLOW, ALLOW: N      goes; goes if fewer than N are admitted, else waits
    BUFFER_ONE, _ALL     the next one goes if none is admitted; of those that wait then only the
                         oldest may, as many as there is room for, the others end
    CANCEL_, TERMINATE_  the newest waiting goes if it is alone; all that is older is ended: at
      OTHER              once what waits or retries, by its worker what runs

A run follows the policy of its job's newest definition, unless its trigger named another.
`schedd/store/dispatch/assign.py` and `schedd/store/dispatch/overlap.py` decide by rows and are
authoritative; this module has the rules that they share with the owner's loops.
"""

from __future__ import annotations

from typing import Final

from schedd.core.jobs.definition import Definition, Overlap
from schedd.core.runs.model import LiveRun

BUFFERS: Final = {Overlap.BUFFER_ONE: 1, Overlap.BUFFER_ALL: 1_000}
"""How many runs wait at most while another is admitted; past that they end (BUFFER_FULL)."""

REPLACES: Final = frozenset({Overlap.CANCEL_OTHER, Overlap.TERMINATE_OTHER})
"""Policies under which the newest run ends the others."""

LINED_UP: Final = REPLACES.union(BUFFERS)
"""Policies that say something of a run though there is no slot for it."""

WAITS_LONG: Final = 3.0
"""Seconds after which a waiting run under SKIP ends newer scheduled runs that wait behind it."""


def limit_of(definition: Definition) -> int:
    """How many runs of the job may be admitted at once; 0: any number."""
    return definition.overlap_limit if definition.overlap is Overlap.ALLOW else 1


def policy_of(run: LiveRun, definition: Definition) -> Overlap:
    """By what the run goes: its trigger's word, or its job's."""
    return run.overlap or definition.overlap
