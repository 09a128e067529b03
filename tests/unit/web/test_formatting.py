"""How values read on a page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from schedd.core.runs.lifecycle import State
from schedd.web import formatting
from schedkit.protojson import from_json
from schedproto.v1 import job_pb2

NOON = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0 ms"),
        (0.0124, "12 ms"),
        (0.9996, "1.0 s"),
        (3.44, "3.4 s"),
        (59.96, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (100 * 86_400 + 7200, "100 d 2 h"),
    ],
)
def test_a_span_is_shown_in_two_units_at_most(seconds: float, said: str) -> None:
    assert formatting.span(timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (NOON, "12:00:05"),
        (NOON + timedelta(hours=13), "05 Mar 01:00"),
        (NOON + timedelta(days=300), "29 Dec 2026"),
    ],
)
def test_a_time_shows_its_day_if_it_isnt_today(at: datetime, said: str) -> None:
    assert formatting.clock(at, NOON) == said


def test_an_instant_reads_the_same_for_a_whole_day() -> None:
    midnight = NOON.replace(hour=0, minute=0, second=0)
    for days in (-181, -180, -179, -1, 0, 1, 179, 180, 181):
        at = NOON + timedelta(days=days)
        said = {
            formatting.clock(at, midnight + timedelta(minutes=minute)) for minute in range(1440)
        }
        assert len(said) == 1, f"{days} days away"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"cron": "* * * * * *"}, "every second"),
        ({"cron": "0 2 * * *", "timeZone": "Europe/Berlin"}, "every day at 02:00, Europe/Berlin"),
        ({"every": "90s"}, "every 1m30s"),
        ({"at": "2026-01-01T00:00:00Z"}, "once"),
        ({"onDemand": True}, "on demand"),
        ({"cron": "what later versions know"}, "what later versions know"),
    ],
)
def test_a_schedule_is_shown_in_words(form: dict[str, object], said: str) -> None:
    assert formatting.schedule(from_json(form, job_pb2.Job)) == said


def test_every_state_has_a_style_and_a_word_of_its_own() -> None:
    assert set(formatting.LOOKS) == {state.value for state in State}
    assert len({look.style for look in formatting.LOOKS.values()}) == len(State)
    assert len({look.word for look in formatting.LOOKS.values()}) == len(State)
