"""`schedctl` of several versions, one call after another, beside all that a run does.

with commanding(world, codes) as commands: …       raises at the end if one of them failed
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from faults.world.world import World
from support.version_before import Code

WORDS: Sequence[Sequence[str]] = (
    ("cluster", "members"),
    ("cluster", "shards"),
    ("cluster", "doctor"),
    ("worker", "list"),
    ("job", "list"),
    ("run", "list"),
    ("audit", "list"),
)
FINDS_FAULT = ("cluster", "doctor")
"""Exits with 1 where a member or a worker is just away."""
PAUSE = 3.0
WAIT_TIMEOUT = 30.0


class Commands:
    """Calls by `schedctl`, each judged by its exit code."""

    def __init__(self, world: World) -> None:
        self._endpoints = ",".join(world.endpoints)
        self.done: Counter[tuple[str, str]] = Counter()
        self.failed: list[str] = []

    def call(self, code: Code, *words: str) -> str:
        """Run one command of this version; return its output. A failure is kept."""
        # It gives way to what is judged by the clock.
        command = ["nice", os.fspath(code.python), "-P", "-m", "schedctl"]
        done = subprocess.run(
            [*command, "--endpoints", self._endpoints, "--timeout", "10s", *words, "-o", "json"],
            env={**os.environ, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            timeout=WAIT_TIMEOUT,
            check=False,
        )
        call = " ".join(words)
        self.done[code.name, call] += 1
        if done.returncode and (words != FINDS_FAULT or done.returncode != 1):
            self.failed.append(f"{code.name}: schedctl {call}: {done.returncode}: {done.stderr}")
        return done.stdout

    def round_and_round(self, codes: Sequence[Code], over: threading.Event) -> None:
        """Each of the commands by each of the versions, until it is over."""
        for words, code in itertools.cycle(itertools.product(WORDS, codes)):
            if over.wait(PAUSE):
                return
            self.call(code, *words)


@contextmanager
def commanding(world: World, codes: Sequence[Code]) -> Iterator[Commands]:
    """Call while this block lasts, and for more calls of one's own.

    Raises:
        AssertionError: at the end, if a call failed, or a command was never called.
    """
    commands, over = Commands(world), threading.Event()
    thread = threading.Thread(target=commands.round_and_round, args=(codes, over), name="schedctl")
    thread.start()
    try:
        yield commands
    finally:
        over.set()
        thread.join()
    assert not commands.failed, "\n".join(commands.failed)
    called = {(code.name, " ".join(words)) for code in codes for words in WORDS}
    assert called <= commands.done.keys(), f"never called: {called - commands.done.keys()}"
