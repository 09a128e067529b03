"""How often an attempt's progress is told, and which of it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

from schedclient.handlers import Progress
from schedproto.v1 import worker_service_pb2 as pb
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.runs.attempts import EVERY, ProgressReporter
from workerd.stream.frame_queue import MemberFrameQueue

KEY = pb.AssignmentKey(run_id="r", fencing_token=3)
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def advance(told: list[pb.Progress]) -> ProgressReporter:
    return ProgressReporter(KEY, lambda: NOW, told.append)


async def test_a_flood_from_a_thread_is_told_seldom_and_its_last_word_always():
    told: list[pb.Progress] = []
    one, loop = advance(told), asyncio.get_running_loop()
    began = loop.time()

    def flood() -> None:
        for done in range(100_001):
            one.update(Progress(done, 100_000, "pages"))

    thread = threading.Thread(target=flood)
    thread.start()
    await wait_until_async(lambda: told and told[-1].fraction == 1.0, WAIT_TIMEOUT, "the last word")
    thread.join()
    assert len(told) <= (loop.time() - began) / EVERY + 1
    last = told[-1]
    assert (last.key, last.done, last.total, last.note) == (KEY, 100_000, 100_000, "pages")
    assert last.at.ToDatetime(tzinfo=UTC) == NOW
    assert one.reported == last


async def test_nothing_is_told_when_it_has_ended():
    told: list[pb.Progress] = []
    one = advance(told)
    one.update(Progress(1, 2, ""))
    await wait_until_async(lambda: told, WAIT_TIMEOUT, "the first")
    one.update(Progress(2, 2, ""))
    one.close()
    await asyncio.sleep(EVERY * 2)
    assert len(told) == 1


def test_of_each_attempt_the_newest_goes_up_and_together():
    outbox = MemberFrameQueue()
    other = pb.AssignmentKey(run_id="s", fencing_token=4)
    for key, fraction in ((KEY, 0.1), (other, 0.5), (KEY, 0.2)):
        outbox.progress(pb.Progress(key=key, fraction=fraction))
    assert {(each.key.run_id, each.fraction) for each in outbox.take_frame().progress} == {
        ("r", 0.2),
        ("s", 0.5),
    }
    assert not outbox.take_frame().progress
