"""The types of option values: a text that is parsed, or rejected with a message for its author."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, cast

import click

from schedclient import InvalidArgument
from schedclient.calls.specs import when_message
from schedkit.clock import utcnow
from schedkit.protojson import FormErrors, from_json, rate_text
from schedkit.text import duration, rate
from schedproto.v1 import pool_service_pb2

T = TypeVar("T")

TIME: Final = "TIME|+3s"
"""The metavar of `TIME_TYPE`."""
LONGEST: Final = timedelta(days=3 * 366)
"""The longest window."""


class Parsed(click.ParamType[T]):
    """A value that `parse` returns for a text; it raises ValueError for a text that isn't valid."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return cast("T", value)  # converted already
        try:
            return self._parse(value)
        except (ValueError, OverflowError) as error:
            self.fail(str(error), param, ctx)


def _guarded(text: str) -> str:
    if not text:
        raise ValueError("the value is empty: give a value, or leave the option out")
    return text


def _time(text: str, also: str = "or from now, such as +3s") -> datetime:
    if text.startswith("+"):
        return utcnow() + duration.parse(text[1:])
    try:
        found = when_message(text, "time").ToDatetime(tzinfo=UTC)
    except InvalidArgument as error:
        raise ValueError(f"{error.violations[0].problem}, {also}") from None
    return cast("datetime", found)


def _local(text: str) -> datetime | str:
    if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d)?", text, re.ASCII):
        return text
    return _time(text, "or a local time with --tz, or from now, such as +3s")


def _past(text: str) -> datetime:
    if not text[:1].isdigit() or "T" in text.upper():
        return _time(text, "or an age, such as 10m")
    return utcnow() - duration.parse(text)


def _seconds(text: str) -> float:
    number = text.removesuffix("s")
    plain = number.replace(".", "", 1).isdigit()
    seconds = float(number) if plain else duration.parse(text).total_seconds()
    if seconds <= 0:
        raise ValueError("the time must be more than 0 s")
    return seconds


def _window(text: str) -> timedelta:
    span = duration.parse(text)
    if not timedelta(seconds=1) <= span <= LONGEST:
        raise ValueError(f"the time window must be from 1s to {LONGEST.days}d")
    return span


def _pool_rate(text: str) -> str:
    try:
        return rate_text(from_json({"rate": text}, pool_service_pb2.Pool).rate)
    except FormErrors as error:
        raise ValueError(error.problems[0].message) from None


def _runs_per_second(text: str) -> float:
    count, per = rate.parse(text, bare="s")
    return float(count) / per.total_seconds()


GUARD: Final = Parsed("text", _guarded)
"""A text that must not be empty, as an unset shell variable would make it."""
TIME_TYPE: Final = Parsed("time", _time)
"""A time: RFC 3339, or relative to now as `+3s`."""
LOCAL_TIME: Final = Parsed("local time", _local)
"""As `TIME_TYPE`, or a local time without an offset, which stays text."""
PAST: Final = Parsed("time", _past)
"""A time: RFC 3339, or an age as `10m`."""
SECONDS: Final = Parsed("duration", _seconds)
"""A duration as `30s` or `2m`; a bare number is seconds."""
WINDOW: Final = Parsed("duration", _window)
"""The length of a window: `7d`, `36h`."""
POOL_RATE: Final = Parsed("rate", _pool_rate)
"""A rate limit, as `100/m` or `3/30s`: the shortest text of it."""
RUN_RATE: Final = Parsed("rate", _runs_per_second)
"""Runs per second, as `100/s`, `6/m` or `90/h`; a bare number is per second."""
