"""The loops of a tenure, and what is left of them at its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest

from schedd.app.owner_loops import Owner
from schedd.cluster.tenure import LiveTenure
from schedd.core.ids import Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import StoredDefinition
from schedd.dispatch.dispatch import Dispatch
from schedd.ports import WakeUps
from schedd.store.reconcile.stats import PendingWork
from schedd.store.user_store import SubmitHook
from schedkit.errors import Unavailable
from schedkit.tasks import Loop
from support.runs import NOW, owning, run

NO_WORK = dict.fromkeys(
    ("chains", "backfills", "redrives", "notifications", "pause_changes"), False
)


def an_owner() -> tuple[Owner, dict[str, Any]]:
    """Return an owner whose dependencies are mocks."""
    parts: dict[str, Any] = {
        name: MagicMock()
        for name in (
            "stores",
            "definition_cache",
            "workers",
            "leases",
            "collector",
            "watchers",
            "clock",
        )
    }
    parts |= {"sender": MagicMock(), "objects": MagicMock()}
    parts["stores"].users.submit_hook = SubmitHook()
    parts["leases"].ttl = 3.0
    parts["clock"].now.return_value = NOW
    return Owner(**parts, cluster_pause=MagicMock(), emit=lambda _event: None), parts


async def test_a_new_run_enters_the_run_index_without_a_read_of_its_row() -> None:
    owner, parts = an_owner()
    owner.runs_created([run(1)])
    live = cast("LiveTenure", MagicMock(ownership=owning(0)))
    owner.loops(live, cast("WakeUps", MagicMock()))
    run_index = parts["collector"].run_index

    made = [run(2), run(3, shard=7), run(4, state=State.SUCCEEDED), run(5, token=Token(3))]
    owner.runs_created(made)

    assert [one.key.run_id.number for one in run_index.ready] == [2], (
        "the others aren't new, or not here"
    )


async def test_a_new_run_wakes_dispatch_only_if_it_is_ready_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owner, parts = an_owner()
    owner.loops(cast("LiveTenure", MagicMock(ownership=owning(0))), cast("WakeUps", MagicMock()))
    woken: list[Dispatch] = []
    monkeypatch.setattr(Dispatch, "wake", lambda self: woken.append(self))
    later = NOW + timedelta(hours=1)
    owner.runs_created([run(1, due_at=later, ready_at=later)])
    assert not woken
    assert len(parts["collector"].run_index.waiting) == 1
    soon = NOW + timedelta(seconds=1)
    owner.runs_created([run(2, due_at=later, ready_at=later), run(3, due_at=soon, ready_at=soon)])
    assert len(woken) == 1


async def test_definitions_that_were_stored_with_new_runs_are_cached_while_loops_run() -> None:
    owner, parts = an_owner()
    definition = cast("StoredDefinition", object())
    owner.runs_created([run(1)], [definition])
    parts["definition_cache"].add_stored.assert_not_called()
    owner.loops(cast("LiveTenure", MagicMock(ownership=owning(0))), cast("WakeUps", MagicMock()))
    owner.runs_created([run(2)], [definition])
    parts["definition_cache"].add_stored.assert_called_once_with([definition])


WOKEN_BY = {
    "chains": "chains",
    "backfills": "backfills",
    "redrives": "redrives",
    "notifications": "notifications",
    "pause_changes": "auto pause",
}


class Woken:
    """The loops of a tenure, none of which runs."""

    def __init__(self) -> None:
        owner, self._parts = an_owner()
        live = cast("LiveTenure", MagicMock(ownership=owning(0)))
        _, *made = owner.loops(live, cast("WakeUps", MagicMock()))
        self._loops: dict[str, Loop] = {loop.name: getattr(loop, "_loop", loop) for loop in made}

    async def by(self, found: PendingWork | Unavailable) -> set[str]:
        """Return the loops that are woken when the look for work finds this."""
        self._parts["stores"].owner.pending_work = AsyncMock(side_effect=[found])
        for loop in self._loops.values():
            await loop.waker.wait(0)
        with suppress(Unavailable):
            await self._loops["pending work"].step()
        return {name for name, loop in self._loops.items() if await loop.waker.wait(0)}


@pytest.mark.parametrize(("kind", "name"), WOKEN_BY.items())
async def test_a_loop_is_woken_while_there_is_work_for_it(kind: str, name: str) -> None:
    woken = Woken()
    assert await woken.by(PendingWork(**NO_WORK)) == set()
    assert await woken.by(PendingWork(**NO_WORK | {kind: True})) == {name}


async def test_all_loops_are_woken_while_it_is_unknown_which_have_work() -> None:
    """Another session may lock one of the tables: the other loops don't need it."""
    woken = Woken()
    assert await woken.by(PendingWork(**NO_WORK)) == set()
    assert await woken.by(Unavailable("a statement waited for a lock")) == set(WOKEN_BY.values())


async def test_the_state_of_a_tenure_is_freed_with_it_without_a_full_collection() -> None:
    """Its parts know each other. A member that loses its lease in a herd would hold it twice."""
    owner, parts = an_owner()
    live = cast("LiveTenure", MagicMock(ownership=owning(0)))
    end, *_ = owner.loops(live, cast("WakeUps", MagicMock()))
    run_index = parts["collector"].run_index
    run_index.put_runs([run(1), run(2)], NOW)

    ending = asyncio.create_task(end.run(), name="end")
    await asyncio.sleep(0)
    assert len(run_index.ready) == 2
    assert parts["stores"].users.submit_hook.store is not None
    ending.cancel()
    await asyncio.wait([ending])

    assert len(run_index.ready) == 0
    assert parts["collector"].run_index is None
    assert parts["stores"].users.submit_hook.store is None
