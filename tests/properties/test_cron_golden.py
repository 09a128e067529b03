"""No stored expression changes its meaning without a word: `golden/cron` is what they meant."""

from dataclasses import replace

import pytest

from almanac import golden
from almanac.golden import Golden
from almanac.trials import ZONES


@pytest.fixture(scope="module")
def written() -> Golden:
    return golden.read()


@pytest.mark.slow
def test_stored_meanings_are_unchanged(written: Golden) -> None:
    found = list(golden.differences(written))
    assert not found, f"{len(found)} differences, the first: {found[0]} (make golden-diff)"


def test_the_golden_data_hold_300_expressions_in_ten_zones(written: Golden) -> None:
    assert len(written.fields) >= 300
    assert set(written.instants) == set(ZONES)
    assert len(ZONES) == 10
    for instants in written.instants.values():
        assert instants.keys() == written.fields.keys()
    assert len(written.changes["Europe/Riga"]) > 50
    assert golden.history()[-1]["reason"]


def test_moved_clocks_are_reported_with_the_instants_that_move_with_them(written: Golden) -> None:
    """As if tzdata had set the clocks a week earlier than it does now, once in 2030."""
    zone, text = "Europe/Dublin", "30 1 * * *"
    at = next(at for at, _ in written.changes[zone] if at > 1_890_000_000)
    clocks = tuple(
        (one - 7 * 86400 if one == at else one, offset) for one, offset in written.changes[zone]
    )
    old = Golden(
        {text: written.fields[text]},
        {**written.changes, zone: clocks},
        {**{other: {} for other in ZONES}, zone: {text: golden._instants(text, zone, clocks)}},
    )
    found = list(golden.differences(old))
    assert found[0].startswith(f"{zone}: clocks were set to UTC")
    assert found[1].startswith(f"{zone}: clocks are set to UTC")
    assert len(found) > 2
    assert all(one.startswith(f"'{text}' in {zone}: after 20") for one in found[2:])


@pytest.mark.slow
def test_a_changed_field_and_a_changed_instant_are_reported(written: Golden) -> None:
    text, zone = "59/15 * * * *", "Europe/Riga"
    dialect, fields = written.fields[text]
    as_before = fields.replace("minute 59;", "minute 0,15,30,45;")
    assert as_before != fields, "the reading of croniter 6"
    were = written.instants[zone][text]
    found = list(
        golden.differences(
            replace(
                written,
                fields={**written.fields, text: (dialect, as_before)},
                instants={
                    **written.instants,
                    zone: {**written.instants[zone], text: ((were[0] or 0) - 60, *were[1:])},
                },
            )
        )
    )
    assert len(found) == 2
    assert found[0].startswith("'59/15 * * * *': meant second 0; minute 0,15,30,45;")
    assert found[1].startswith("'59/15 * * * *' in Europe/Riga: after 2010-")
