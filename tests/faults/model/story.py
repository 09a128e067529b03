"""Replay of one seed: prints its last commits, starts and answers, which show the cause."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from faults.model.promises import Broken
from faults.model.rows import Transaction
from faults.model.rules import Rule
from faults.model.search import Outcome, live, world_of

LAST = 40


def replay(seed: int, without: frozenset[Rule], say: Callable[[str], None]) -> Outcome:
    """Simulate the seed, and print its last events and the violation."""
    world = world_of(seed, without)
    lines: deque[str] = deque(maxlen=LAST)

    def note(line: str) -> None:
        lines.append(f"{world.now:6} {line}")

    judged = world.database.judge

    def committed(transaction: Transaction) -> None:
        claim = transaction.claim
        who = f"tenure {claim.tenure}, epoch {claim.epoch}" if claim else "any member"
        for (name, key), (_, row) in transaction.writes.items():
            note(f"commit  {who}: {name} {key} = {row}")
        judged(transaction)

    world.database.judge = committed
    world.judge.note = note
    broken = None
    try:
        live(world)
    except Broken as found:
        broken = found
    for line in lines:
        say(line)
    say(f"seed {seed}: {broken or 'no violation'}")
    return Outcome(seed, world.judge.seen, broken)
