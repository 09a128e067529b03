"""Repeated log lines are written rarely, with a count; lines with other names are all written."""

from __future__ import annotations

import logging

from schedkit.daemon.log_rate_limit import MOST, SPAN, RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Log:
    """A log that records lines of records made at given times."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.limit = RateLimit(self.clock)
        self.lines: list[tuple[str, int]] = []

    def say(self, message: str, *args: object, **extra: object) -> None:
        record = logging.makeLogRecord(
            {"name": "a", "levelname": "WARNING", "msg": message, "args": args, **extra}
        )
        self._take(self.limit.admit(record))

    def end(self) -> None:
        self._take(self.limit.rest())

    def _take(self, records: object) -> None:
        for record in records:  # type: ignore[attr-defined]  # as `admit` returns
            self.lines.append((record.getMessage(), getattr(record, "repeated", 0)))


def test_a_line_repeated_for_a_minute_is_written_a_few_times_and_each_repetition_counts() -> None:
    log = Log()
    for step in range(600):
        log.clock.now = 1000 + step / 10
        log.say("etcd doesn't answer; trying again in %.1f s", step / 7)
    log.end()

    assert len(log.lines) <= 5
    assert sum(1 + repeated for _, repeated in log.lines) == 600


def test_lines_that_differ_in_a_name_or_an_id_are_all_written() -> None:
    log = Log()
    for name in ("m1", "m2", "w1", "127.0.0.1:2379", "127.0.0.1:2380"):
        log.say("%s is away", name)
    log.say("run moved on", run_id="0b6f")
    log.say("run moved on", run_id="0b70")

    assert [repeated for _, repeated in log.lines] == [0] * 7


def test_many_different_lines_of_one_kind_are_written_in_part_and_counted() -> None:
    log = Log()
    for number in range(1000):
        log.say("caller c%d refused", number)
    assert len(log.lines) == MOST

    log.clock.now += SPAN
    log.say("something else")

    assert log.lines[MOST:] == [("caller c999 refused", 1000 - MOST - 1), ("something else", 0)]


def test_a_line_after_a_long_pause_is_written_at_once() -> None:
    log = Log()
    for _ in range(3):
        log.say("lost")
    log.clock.now += 1000
    log.say("lost")

    assert sum(1 + repeated for _, repeated in log.lines) == 4


def test_a_count_is_written_with_the_next_line_of_any_kind_once_it_is_due() -> None:
    log = Log()
    for _ in range(10):
        log.say("lost")
    log.clock.now += 2
    log.say("other")

    assert log.lines == [("lost", 0), ("lost", 8), ("other", 0)]


def test_a_traceback_is_never_suppressed() -> None:
    log = Log()
    for _ in range(5):
        log.say("a bug", exc_info=(ValueError, ValueError("x"), None))

    assert len(log.lines) == 5
