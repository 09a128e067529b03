"""A correct history in which the database was restored, in a line.

    0 ─ both ─ 210 backup ─ lost ─ 250 stopped    253 opened, 254 paused ─ kept ─ 260 resumed ▶

The job `tick` runs each second. The probes and the record know the lost time, and no row does
afterwards; scheduled times from 245 on are caught up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from faults.history import Commit, History, Restore
from support.story.rows import BASE, KEYS, final, update
from support.story.telling import Run, Story
from support.story.worlds import no_faults

TAKEN, STOPPED, OPENED = 210.5, 250.5, 253.0
PAUSED, HORIZON, RESUMED, END = 254.0, 244.5, 260.0, 500


@dataclass(slots=True)
class Restored:
    """Two stories that share their beginning. Tests change `lost` and `kept` before `history`.

    `under_way`: the run of 210, which the restored rows have RUNNING.
    """

    lost: Story
    kept: Story
    under_way: Run

    def history(self) -> History:
        """As it would have been recorded."""
        lost, kept = self.lost.history(), self.kept.history()
        before = _until(lost, STOPPED)
        backup = _until(kept, TAKEN)
        after = tuple(each for each in kept.commits if each.at > BASE + OPENED)
        seen = {*lost.probes, *kept.probes}
        return replace(
            kept,
            commits=before + after,
            probes=tuple(sorted(seen, key=lambda event: event.at)),
            restore=Restore(
                BASE + TAKEN, BASE + STOPPED, BASE + OPENED, len(before), BASE + HORIZON
            ),
            stopped=_dumped(before),
            restored=_whole(backup),
            database=_dumped(backup + after),
        )


def restored(
    *,
    recorded: bool = True,
    paused: bool = True,
    rerun: bool = True,
    lost_epoch: int | None = None,
    **wanted: Any,
) -> Restored:
    """Return both stories. `recorded`: 211 to 260 have rows too; `paused`: the cluster was paused;
    `rerun`: the run in progress runs again; `lost_epoch`: the epoch of a takeover in the lost time.
    """
    lost, kept = (_common(**wanted) for _ in range(2))
    lost_run, kept_run = (_begun(story) for story in (lost, kept))
    lost.write("end", lost_run, 210.8, 0)
    lost.accept(lost_run, 210.85)
    if lost_epoch is not None:
        lost.take(0, "m1", 230.5, lost_epoch)
    lost.tick(range(211, 250))
    _recovered(kept, kept_run, paused=paused)
    if recorded:
        kept.merge(211, 244, "SKIPPED", 260.2, reason="PAUSED")
        kept.merge(245, 259, "COALESCED", 260.4)
        kept.play(kept.fire(260, on=260.4), 260.45)
    kept.tick(range(261, END))
    if rerun:
        kept.play(kept_run, 260.05, worker="w2")
    return Restored(lost, kept, kept_run)


def _common(**wanted: Any) -> Story:
    return no_faults(seconds=END, without=range(210, END), **wanted)


def _begun(story: Story) -> Run:
    run = story.fire(210)
    story.assign(run, 210.05)
    story.write("start", run, 210.07)
    return run


def _until(history: History, at: float) -> tuple[Commit, ...]:
    return tuple(each for each in history.commits if each.at <= BASE + at)


def _rows(commits: tuple[Commit, ...]) -> dict[str, tuple[Any, ...]]:
    return {table: tuple(final(commits, table)) for table in KEYS}


def _whole(commits: tuple[Commit, ...]) -> dict[str, tuple[Any, ...]]:
    """As a dump of all columns has it."""
    rows = _rows(commits)
    return {**rows, "runs": tuple({**row, "payload": None} for row in rows["runs"])}


def _dumped(commits: tuple[Commit, ...]) -> dict[str, tuple[Any, ...]]:
    """As a dump at the end has it: without what is large."""
    rows = _rows(commits)
    jobs = ({k: v for k, v in row.items() if k != "spec"} for row in rows["jobs"])
    return {**rows, "jobs": tuple(jobs)}


def _recovered(story: Story, under_way: Run, *, paused: bool) -> None:
    """The members take all shards again, pause the cluster and declare the workers lost; a person
    resumes it.
    """
    story.fault("PostgreSQL restored", "pg", STOPPED, 266.5)
    for member in ("m1", "m2"):
        story.fence(member, 253.3)
        story.tenure(f"{member}'", 253.4)
    story.term(2, "m1'", 253.5)
    if paused:
        for at, state in ((PAUSED, "true"), (RESUMED, "false")):
            story.commit(at, update("cluster", {"one": "true", "paused": state}))
    story.rescue(under_way, 254.05)
    story.lose(story.incarnations["w2"], 254.06)
    for worker in ("w1", "w2"):
        story.attach(worker, 254.2)
    for shard, owner in ((0, "m1'"), (1, "m2'")):
        story.take(shard, owner, 254.5 + shard / 240)
