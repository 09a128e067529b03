"""Correct histories in a line."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from faults.checker import check
from faults.history import Resource
from support.story.rows import BASE
from support.story.stage import META
from support.story.telling import Story


def broken(story: Story) -> frozenset[str]:
    """The names of the invariants that the checker finds broken."""
    return check(story.history()).broken


def no_faults(*, without: Collection[int] = (), seconds: int = 250, **wanted: Any) -> Story:
    """Two members, two workers, the job `tick` each second; nothing happens."""
    story = _begun("no faults", seconds)
    _cluster(story, None)
    story.job("tick", **wanted)
    _calls_and_resources(story, seconds)
    story.tick(at for at in range(1, seconds) if at not in without)
    return story


def leader_killed(*, without: Collection[int] = (), seconds: int = 250, **wanted: Any) -> Story:
    """The same, and m1, leader and owner of the job's shard, is killed at 100.2.

    m2 leads from 103.4 on; 101 and 102 are coalesced into 103. `without`: seconds left untold.
    """
    story = _begun("leader-kill", seconds)
    _cluster(story, 103.5)
    story.fault("kill", "m1", 100.2, 121.0)
    story.tenure("m1'", 105.0)
    story.job("tick", **wanted)
    _calls_and_resources(story, seconds)
    story.tick(at for at in range(1, 101) if at not in without)
    if not {101, 102, 103} & set(without):
        story.merge(101, 102, "COALESCED", 103.7)
        story.play(story.fire(103, on=103.7), 103.8)
    story.tick(at for at in range(104, seconds) if at not in without)
    return story


def _begun(scenario: str, seconds: float) -> Story:
    end = BASE + seconds
    return Story(replace(META, scenario=scenario, ended=end, quiet=((BASE, end),)))


def _cluster(story: Story, falls: float | None) -> None:
    story.tenure("m1", 0.01, fenced=falls)
    story.tenure("m2", 0.02)
    story.term(1, "m1", 0.03)
    for shard, owner in ((0, "m1"), (1, "m2")):
        story.take(shard, owner, 0.05 + shard / 100)
    if falls is not None:
        story.term(2, "m2", falls - 0.1)
        story.take(0, "m2", falls + 0.1)
    for worker in ("w1", "w2"):
        story.attach(worker, 0.1)


def _calls_and_resources(story: Story, seconds: int) -> None:
    for at in range(10, seconds - 10, 20):
        if not 90 < at < 130:
            story.call("list", at)
    for who in ("m1", "m2", "w1", "w2"):
        for at, phase in ((5, "before"), (100, "during"), (seconds - 5, "after")):
            spool = 4096 if who.startswith("w") else None
            story.resources.append(
                Resource(BASE + at, who, 1, 90_000, 50, 20, 5, spool, phase)  # type: ignore[arg-type] # from the literal above
            )
