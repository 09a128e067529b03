"""Events of runs: made once for all who are told the same, and never another's."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from schedd.api.runs.run_messages import RunMessages
from schedd.core.runs.change_stream import Change
from schedd.core.runs.lifecycle import State
from schedproto.v1 import run_pb2
from support.runs import record


def test_one_change_is_one_event_for_all_who_are_told_of_it() -> None:
    messages, change = RunMessages(), Change(record(1), 7)
    event = messages.of(change, None, "1-2")
    assert messages.of(change, None, "1-2") is event
    assert (event.run.run_id, event.cursor) == (str(change.run_id), "1-2")


def test_what_is_told_goes_by_the_cursor_and_by_how_far_the_run_is() -> None:
    messages, change = RunMessages(), Change(record(1, state=State.RUNNING), 7)
    half, whole = (run_pb2.RunProgress(note=text) for text in ("half", "whole"))
    told = [
        messages.of(change, progress, cursor)
        for progress, cursor in [(None, ""), (half, ""), (whole, ""), (whole, "1-2"), (None, "1-2")]
    ]
    assert [event.run.progress.note for event in told] == ["", "half", "whole", "whole", ""]
    assert [event.cursor for event in told] == ["", "", "", "1-2", "1-2"]


def test_of_the_same_version_another_record_is_another_event() -> None:
    """What a record says of the run's job isn't in the run's row."""
    messages, change = RunMessages(), Change(record(1), 7)
    messages.of(change, None, "")
    renamed = Change(replace(change.record, job="renamed"), 7)
    assert messages.of(renamed, None, "").run.job == "renamed"


@pytest.mark.slow
def test_nothing_is_kept_of_a_change_that_nobody_has() -> None:
    messages, change = RunMessages(), Change(record(1), 7)
    messages.of(change, None, "")
    del change
    gc.collect()
    assert len(messages._made) == 0
