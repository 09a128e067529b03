"""A test that is judged by the second has the machine to itself (`support/turnstile.py`)."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from support.turnstile import Turnstile
from support.wait import wait_until


class Visitor:
    """A visitor in a thread, from its entry until `leave`."""

    def __init__(self, way: Callable[[], AbstractContextManager[None]]) -> None:
        self.inside = threading.Event()
        self._leaves = threading.Event()
        self._way = way
        self._thread = threading.Thread(target=self._visit, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        self._leaves.set()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def _visit(self) -> None:
        with self._way():
            self.inside.set()
            self._leaves.wait(30)


def test_many_tests_run_concurrently(tmp_path: Path) -> None:
    turnstile = Turnstile(tmp_path)
    visitors = [Visitor(turnstile.beside) for _ in range(3)]
    for one in visitors:
        assert one.inside.wait(5)
    for one in visitors:
        one.leave()


def test_an_exclusive_visitor_waits_for_all_inside_and_later_visitors_wait_for_it(
    tmp_path: Path,
) -> None:
    turnstile = Turnstile(tmp_path)
    before = [Visitor(turnstile.beside) for _ in range(2)]
    for one in before:
        assert one.inside.wait(5)
    alone = Visitor(turnstile.alone)
    wait_until(lambda: _is_shut(tmp_path / "gate"), 5, "it to stand in the gate")
    after = Visitor(turnstile.beside)
    before[0].leave()
    time.sleep(0.1)
    assert not alone.inside.is_set(), "one is inside"
    before[1].leave()
    assert alone.inside.wait(5)
    time.sleep(0.1)
    assert not after.inside.is_set()
    alone.leave()
    assert after.inside.wait(5)
    after.leave()


def _is_shut(gate: Path) -> bool:
    with gate.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
