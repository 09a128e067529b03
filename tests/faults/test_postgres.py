"""PostgreSQL that restarts, crashes, or keeps a table to itself."""

from __future__ import annotations

from faults.conftest import FaultRun
from faults.nemesis.postgres import locked, restarted
from faults.world.world import World


def test_postgres_restarted(fault_run: FaultRun, world: World) -> None:
    """Nothing that was acknowledged is lost, and the leader stays who it is."""
    with fault_run() as run, restarted(run.journal, world.postgres):
        run.ride(2)


def test_table_locked(fault_run: FaultRun, world: World) -> None:
    """All writes of runs wait, longer than any timeout; the backlog drains, once each."""
    with fault_run() as run, locked(run.journal, world.postgres, "runs"):
        run.ride(8)
