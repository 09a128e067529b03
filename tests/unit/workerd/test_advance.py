"""Progress of attempts: which reports are sent, and how often."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

from schedclient.handlers import Progress
from schedproto.v1 import worker_service_pb2 as pb
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.ids import Address
from workerd.frame_queue import MemberFrameQueue
from workerd.runs.attempts import EVERY, ProgressReporter

KEY = pb.AssignmentKey(run_id="r", fencing_token=3)
NOW = datetime(2026, 11, 23, tzinfo=UTC)


def advance(sent: list[pb.Progress]) -> ProgressReporter:
    return ProgressReporter(KEY, lambda: NOW, sent.append, asyncio.get_running_loop())


async def test_progress_from_a_thread_is_rate_limited_and_the_last_report_is_sent():
    sent: list[pb.Progress] = []
    reporter, loop = advance(sent), asyncio.get_running_loop()
    began = loop.time()

    def flood() -> None:
        for done in range(100_001):
            reporter.update(Progress(done, 100_000, "pages"))

    thread = threading.Thread(target=flood)
    thread.start()
    await wait_until_async(
        lambda: sent and sent[-1].fraction == 1.0, WAIT_TIMEOUT, "the last report"
    )
    thread.join()
    assert len(sent) <= (loop.time() - began) / EVERY + 1
    last = sent[-1]
    assert (last.key, last.done, last.total, last.note) == (KEY, 100_000, 100_000, "pages")
    assert last.at.ToDatetime(tzinfo=UTC) == NOW
    assert reporter.reported == last


async def test_no_progress_is_sent_after_the_end():
    sent: list[pb.Progress] = []
    reporter = advance(sent)
    reporter.update(Progress(1, 2, ""))
    await wait_until_async(lambda: sent, WAIT_TIMEOUT, "the first")
    reporter.update(Progress(2, 2, ""))
    reporter.close()
    await asyncio.sleep(EVERY * 2)
    assert len(sent) == 1


def test_the_newest_progress_of_each_attempt_is_sent_in_one_frame():
    outbox = MemberFrameQueue(Address("m1"))
    other = pb.AssignmentKey(run_id="s", fencing_token=4)
    for key, fraction in ((KEY, 0.1), (other, 0.5), (KEY, 0.2)):
        outbox.send_progress(pb.Progress(key=key, fraction=fraction))
    assert {(each.key.run_id, each.fraction) for each in outbox.take_frame().progress} == {
        ("r", 0.2),
        ("s", 0.5),
    }
    assert not outbox.take_frame().progress
