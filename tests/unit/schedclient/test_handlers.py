"""Registration of handlers, their progress and their cancellation."""

from __future__ import annotations

import functools
import threading
from datetime import UTC, datetime

import pytest

from schedclient.handlers import Context, Mode, Progress, handler, registered


def test_a_handler_that_cant_be_called_with_payload_and_ctx_is_refused_when_it_is_registered():
    def alone(ctx):
        return ctx

    def too_many(payload, ctx, more):
        return payload, ctx, more

    for function in (alone, too_many):
        with pytest.raises(
            ValueError, match=r"must accept two arguments, as in \w+\(payload, ctx\)"
        ):
            handler(function)


def test_a_handler_may_have_more_with_defaults_or_be_written_in_c():
    def defaults(payload, ctx, retries=3):
        return payload, ctx, retries

    assert handler(defaults) is defaults
    assert handler("largest")(max) is max


def test_a_wrapped_handler_is_checked_by_its_own_signature():
    def with_database(payload, ctx, database):
        return payload, ctx, database

    @functools.wraps(with_database)
    def bound(payload, ctx):
        return with_database(payload, ctx, "the database")

    assert handler("bound")(bound) is bound


def test_a_wrapper_that_takes_too_little_is_refused_whatever_it_wraps():
    def whole(payload, ctx):
        return payload, ctx

    @functools.wraps(whole)
    def alone(payload):
        return whole(payload, None)

    with pytest.raises(ValueError, match="as in alone"):
        handler("alone")(alone)


def test_a_handler_runs_on_the_loop_in_a_thread_or_in_a_process_of_its_own():
    async def coroutine(payload, ctx):
        return payload, ctx

    def function(payload, ctx):
        return payload, ctx

    handler("on the loop")(coroutine)
    handler("in a thread")(function)
    handler("apart", mode="process")(function)
    handler(mode="process")(coroutine)
    named = {name: registered[name].mode for name in ("on the loop", "in a thread", "apart")}
    assert [*named.values()] == [Mode.LOOP, Mode.THREAD, Mode.PROCESS]
    assert registered["coroutine"].mode is Mode.PROCESS


def test_a_coroutine_has_no_thread_and_no_other_mode_is_known():
    async def other_coroutine(payload, ctx):
        return payload, ctx

    with pytest.raises(ValueError, match="is a coroutine"):
        handler(mode="thread")(other_coroutine)
    with pytest.raises(ValueError, match="'fiber' is neither thread nor process"):
        handler(mode="fiber")(other_coroutine)  # type: ignore[call-overload]


def test_progress_is_a_fraction_and_a_heartbeat():
    reported, beats = [], []
    now = datetime(2026, 11, 23, tzinfo=UTC)
    ctx = Context(
        *("default", "job", "run", 1, now, now, 7, "", "w1"),
        on_heartbeat=lambda: beats.append(1),
        on_progress=reported.append,
    )
    ctx.progress(0.25)
    ctx.progress(30, 120, "x" * 1000)
    assert reported == [Progress(0.25, 1.0, ""), Progress(30.0, 120.0, "x" * 200)]
    assert [each.fraction for each in reported] == [0.25, 0.25]
    assert len(beats) == 2
    ctx.progress(1, note="half of a \ud83d")
    assert reported[-1].note == "half of a ?"
    for wrong in ((2,), (-1, 3), (1, 0), (float("nan"),), (1, float("inf"))):
        with pytest.raises(ValueError, match="progress: "):
            ctx.progress(*wrong)


def cancel() -> threading.Event:
    at = datetime(2026, 11, 24, tzinfo=UTC)
    return Context("n", "j", "r", 1, at, at, 7, "", "w").cancel


def test_a_cancel_is_an_event_of_its_own_context():
    one, other = cancel(), cancel()
    assert isinstance(one, threading.Event)
    one.set()
    assert one.is_set()
    assert one.wait()
    assert "unset" not in repr(one)
    assert not other.is_set()
    assert not other.wait(0.01)
    assert "unset" in repr(other)


def test_a_waiting_thread_receives_a_cancel_that_is_cleared_meanwhile():
    one, received, waits = cancel(), threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        waits.release()
        assert one.wait(30)
        received.set()

    thread = threading.Thread(target=wait)
    thread.start()
    waits.acquire()
    one.wait(0.01)  # a second one to wait, for less long
    one.clear()
    assert not received.is_set()
    one.set()
    assert received.wait(30)
    thread.join()
    one.clear()
    assert not one.is_set()
    assert not one.wait(0.01)


def test_a_cancel_wakes_each_of_many_tasks_that_begin_to_wait():
    for _ in range(50):
        assert waits_of_many(cancel()) == [True] * 4


def waits_of_many(one: threading.Event) -> list[bool]:
    results, start = [], threading.Barrier(5)

    def wait() -> None:
        start.wait(30)
        results.append(one.wait(30))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for each in threads:
        each.start()
    start.wait(30)
    one.set()
    for each in threads:
        each.join()
    return results
