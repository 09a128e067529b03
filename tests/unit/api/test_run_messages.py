"""Events of runs: all receivers of the same change share one, and never another."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from schedd.api.runs.snapshots import RunMessages
from schedd.core.runs.change_stream import Change
from schedd.core.runs.lifecycle import State
from schedproto.v1 import run_pb2
from support.runs import record


def test_all_receivers_of_one_change_share_one_event() -> None:
    messages, change = RunMessages(), Change(record(1), 7)
    event = messages.of(change, None, "1-2")
    assert messages.of(change, None, "1-2") is event
    assert (event.run.run_id, event.cursor) == (str(change.run_id), "1-2")


def test_an_event_depends_on_the_cursor_and_on_the_progress_of_the_run() -> None:
    messages, change = RunMessages(), Change(record(1, state=State.RUNNING), 7)
    half, whole = (run_pb2.RunProgress(note=text) for text in ("half", "whole"))
    events = [
        messages.of(change, progress, cursor)
        for progress, cursor in [(None, ""), (half, ""), (whole, ""), (whole, "1-2"), (None, "1-2")]
    ]
    assert [event.run.progress.note for event in events] == ["", "half", "whole", "whole", ""]
    assert [event.cursor for event in events] == ["", "", "", "1-2", "1-2"]


def test_another_record_of_the_same_version_is_another_event() -> None:
    """Fields of the job in a record aren't part of the row of the run."""
    messages, change = RunMessages(), Change(record(1), 7)
    messages.of(change, None, "")
    renamed = Change(replace(change.record, job="renamed"), 7)
    assert messages.of(renamed, None, "").run.job == "renamed"


@pytest.mark.slow
def test_an_unreferenced_change_is_not_kept() -> None:
    messages, change = RunMessages(), Change(record(1), 7)
    messages.of(change, None, "")
    del change
    gc.collect()
    assert len(messages._made) == 0
