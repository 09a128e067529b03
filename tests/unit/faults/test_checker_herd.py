"""While very much is due at one instant a run may be late, and nothing else is excused."""

from __future__ import annotations

from support.story import Story, broken, no_faults


def in_a_herd() -> Story:
    """Return a herd from 140 to 170; the test adds second 150."""
    story = no_faults(without={150})
    story.fault("herd", "all members and workers", 140.0, 170.0)
    return story


def test_a_run_that_waits_for_a_slot_among_so_many_is_late_and_breaks_nothing() -> None:
    story = in_a_herd()
    story.play(story.fire(150), 167.5)
    assert broken(story) == frozenset()


def test_a_run_that_is_late_though_the_herd_is_long_over_breaks_l2() -> None:
    story = in_a_herd()
    story.play(story.fire(150), 200.0)
    assert "L2" in broken(story)


def test_an_instant_without_a_row_is_lost_in_a_herd_too() -> None:
    assert "L1" in broken(in_a_herd())


def test_a_run_that_never_starts_is_lost_in_a_herd_too() -> None:
    story = in_a_herd()
    story.update_run(story.fire(150), 168.0, state="SUCCEEDED")
    assert "L2" in broken(story)


def test_a_second_start_is_not_excused_by_a_herd() -> None:
    story = in_a_herd()
    run = story.fire(150)
    story.play(run, 167.5)
    story.write("start", run, 168.5)
    assert "L5" in broken(story)


def test_an_early_start_is_not_excused_by_a_herd() -> None:
    story = in_a_herd()
    run = story.fire(150, on=149.4)
    story.play(run, 149.5)
    assert "S7" in broken(story)
