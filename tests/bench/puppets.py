"""Run simulated workers in one process: they connect to members, and execute nothing.

    member ←── Attach (the real call) ──→ simulated worker: accepted → started → ended → result
                                          in memory: no executor, no spool, no watchdog

Each simulated worker has its own connection, incarnation, slots and clock. It grants slots, sends
heartbeats, rejects runs, and sends each result again until a member acknowledges it. Lost memory
does no harm, because a simulated worker executes nothing. When all simulated workers are
connected, the process prints `attached N`. The process ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NoReturn

import workerd.stream.streams
from bench.connections import apart
from bench.numbers import from_zero, plain_parser, positive, seconds_from_zero
from schedkit.clock import boottime, utcnow
from schedproto.v1 import worker_service_pb2 as pb
from support.wait import wait_until_async
from workerd import messages
from workerd.batches import AssignedBatch
from workerd.core.admission import (
    Admission,
    AssignmentState,
    NotTaken,
    NotYet,
    OfferedBatch,
    RejectReason,
)
from workerd.core.cluster_time import JudgingClock, MemberTime
from workerd.core.ids import Address, AssignmentKey, Incarnation
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import SUCCESS
from workerd.delivery.result_sender import RESEND_AFTER
from workerd.frame_queue import MemberFrameQueue
from workerd.runs.assignments import MOST_LISTED
from workerd.stream.streams import Attach, MemberStream

AT_A_TIME: Final = 20
"""Workers started in each `STEP` seconds, because a real fleet doesn't start at one time."""
STEP: Final = 0.1
ATTACH_WITHIN: Final = 100.0
"""Timeout in seconds for the connection of all workers."""


class Hands:
    """Stand-in for a worker's executor and result sender, as `Attach` uses them."""

    refusal_reason = ""
    room = (0, 1 << 40)
    remaining_capacity = MOST_LISTED

    def __init__(
        self,
        name: str,
        admission: Admission,
        trust: WorkerLeaseTrust,
        clock: JudgingClock,
        lasts: float,
    ) -> None:
        self._name, self._lasts = name, lasts
        self.admission, self.trust, self.clock = admission, trust, clock
        self._taken: dict[AssignmentKey, tuple[AssignedBatch, int, MemberFrameQueue]] = {}
        self._started: dict[AssignmentKey, int] = {}
        self._unanswered: dict[AssignmentKey, tuple[pb.Result, float]] = {}
        self._streams: list[MemberStream] = []
        self.sender = self
        self.attach: Attach | None = None

    # -- Work --

    def assign(
        self,
        assignments: Iterable[pb.Assignment],
        time: MemberTime,
        origin: MemberFrameQueue,
        batches: Iterable[pb.RunBatch] = (),
    ) -> None:
        """Accept, start or reject assignments."""
        now = boottime()
        for batch in (*map(AssignedBatch.of_one, assignments), *map(AssignedBatch.of, batches)):
            not_before = batch.not_before
            offered = OfferedBatch(
                batch.keys,
                batch.incarnation,
                max(batch.common.slots, 1),
                messages.seconds(batch.common.start_by),
                None if not_before is None else time.surely_reached(not_before / 1e6),
            )
            answers = self.admission.offer(
                offered, self.clock.read(now), trusted=self._trusted(now)
            )
            for place, key in enumerate(batch.keys):
                answer = answers.get(place)
                if answer is None:
                    self._taken[key] = batch, place, origin
                    self._begin(key)
                elif isinstance(answer, NotTaken):
                    origin.send_refusal(messages.refusal(batch.key(place), answer))
                elif answer.state is AssignmentState.ENDED:
                    self._send(key)
        self._redeal()

    def rearm(self, time: MemberTime) -> None:
        """Ignore: clocks aren't set during a measurement."""

    def revoke(self, message: pb.AssignmentKey) -> pb.RevokeAnswer:
        """Revoke an assignment that hasn't started."""
        key = messages.key_of(message)
        revoked = self.admission.revoke(key, self.clock.read(boottime()))
        if revoked:
            self._taken.pop(key, None)
        outcome = pb.RevokeAnswer.OUTCOME_REVOKED if revoked else pb.RevokeAnswer.OUTCOME_STARTED
        return pb.RevokeAnswer(key=message, outcome=outcome)

    def cancel(self, cancel: pb.Cancel, link: MemberFrameQueue) -> None:
        """Revoke what has not started; a started run succeeds soon."""
        key = messages.key_of(cancel.key)
        if self.admission.revoke(key, self.clock.read(boottime())):
            self._taken.pop(key, None)
            refused = NotTaken(RejectReason.REVOKED, key.token, "canceled before it started")
            link.send_refusal(messages.refusal(cancel.key, refused))

    def drain(self, *, on: bool) -> None:
        """Stop or continue to accept runs."""
        self.admission.draining = on
        self._redeal()

    def renew(self, incarnation: Incarnation) -> None:
        """Reject assignments that were sent to the earlier incarnation."""
        for offered, places in self.admission.renew(incarnation):
            for key in [offered.keys[place] for place in places]:
                self._return(key, RejectReason.OTHER_INCARNATION)

    def holdings(self) -> Iterator[messages.Holding]:
        """Return the runs that are held, pre-dispatched or in progress."""
        for key, (batch, place, _) in self._taken.items():
            state = self.admission.state(key)
            if state is not None:
                yield key, batch.scheduled[place], state, self._started.get(key)

    def progress(self) -> Iterator[pb.Progress]:
        """Report no progress."""
        return iter(())

    def send_again(self) -> None:
        """Do nothing: `assign` has sent the result of a repeated assignment."""

    def lease_lost(self) -> None:
        """Ignore: no process depends on the lease."""

    def follow(self, follow: pb.Follow, origin: MemberFrameQueue) -> None:
        """Ignore: nothing is written."""

    def remove_stream(self, origin: MemberFrameQueue) -> None:
        """Ignore: no caller follows a log."""

    def _begin(self, key: AssignmentKey) -> None:
        if key not in self._taken:  # revoked, while it was pre-dispatched
            return
        now = boottime()
        batch, place, _ = self._taken[key]
        offered, part = self._offered(key), range(place, place + 1)
        _, answer = self.admission.start(
            offered, part, now, self.clock.read(now), trusted=self._trusted(now)
        )
        match answer:
            case NotYet(until):
                asyncio.get_running_loop().call_later(until - now, self._begin, key)
            case RejectReason():
                self._return(key, answer)
            case None:
                # As a worker dates it: once it began, its due time had surely come.
                self._started[key] = max(self._date(), batch.not_before or 0)
                if self._lasts:
                    asyncio.get_running_loop().call_later(self._lasts, self._end, key)
                else:
                    self._end(key)

    def _end(self, key: AssignmentKey) -> None:
        batch, place, _ = self._taken.pop(key)
        began = self._started.pop(key)
        self.admission.end_executions(self._offered(key), [place])
        ended = max(began, self._date())
        result = messages.result(
            key, batch.key(place), batch.incarnation, self._name, SUCCESS, began, ended
        )
        self._unanswered[key] = result, 0.0
        self._send(key)
        self._redeal()

    def _offered(self, key: AssignmentKey) -> OfferedBatch:
        offered = self.admission.find(key)
        assert offered is not None, "it was accepted"
        return offered

    def _return(self, key: AssignmentKey, why: RejectReason) -> None:
        batch, place, origin = self._taken.pop(key)
        origin.send_refusal(messages.refusal(batch.key(place), NotTaken(why, key.token)))

    # -- Courier --

    def unanswered(self) -> Iterator[tuple[AssignmentKey, int]]:
        """Return the results that no member has acknowledged, and their scheduled times."""
        for key, (result, _) in self._unanswered.items():
            yield key, messages.microseconds(result.key.scheduled_at)

    def attached(self, stream: MemberStream) -> None:
        """Add a stream to send on."""
        self._streams.append(stream)
        for key in self._unanswered:
            self._send(key)

    def detached(self, stream: MemberStream) -> None:
        """Remove a stream; results go over another one."""
        self._streams.remove(stream)
        for key in self._unanswered:
            self._send(key)

    def acknowledge(
        self, answers: Iterable[pb.Acknowledgement], batches: Iterable[pb.AckBatch] = ()
    ) -> None:
        """Forget a result that is stored or stale."""
        keys = [messages.key_of(answer.key) for answer in answers]
        for batch in batches:
            keys += messages.keys_of(batch.run_ids, batch.fencing_tokens)
        for key in keys:
            self._unanswered.pop(key, None)
        self.admission.acknowledged(keys)

    def tidy(self) -> None:
        """Send unacknowledged results again, and forget old tokens."""
        now = boottime()
        for key, (_, sent) in self._unanswered.items():
            if now - sent > RESEND_AFTER:
                self._send(key)
        if self.clock.known:
            self.admission.forget(self.clock.read(now))

    def _send(self, key: AssignmentKey) -> None:
        if self._streams and (parcel := self._unanswered.get(key)) is not None:
            self._unanswered[key] = parcel[0], boottime()
            self._streams[0].send_result(parcel[0])

    def _redeal(self) -> None:
        if self.attach is not None:
            self.attach.redeal()

    def _trusted(self, now: float) -> bool:
        return self.trust.holds(now) and self.clock.known

    def _date(self) -> int:
        at = self.clock.date(boottime())
        return int((utcnow().timestamp() if at is None else at) * 1e6)


def puppet(name: str, seeds: Sequence[str], slots: int, lasts: float) -> tuple[Attach, Hands]:
    """Simulated worker; `Attach.run` is its main loop."""
    identity = pb.Hello(
        worker=name,
        incarnation=str(uuid.uuid4()),
        spool_id=str(uuid.uuid4()),
        version="0",
        host="puppets",
        slots=slots,
        handlers=["noop"],
        actions=["python"],
    )
    identity.started_at.FromDatetime(utcnow())
    admission = Admission(slots, Incarnation(identity.incarnation))
    trust, clock = WorkerLeaseTrust(), JudgingClock()
    hands = Hands(name, admission, trust, clock, lasts)
    addresses = [Address(each) for each in seeds]
    # They are asked for no more than what `Hands` has.
    attach = Attach(identity, addresses, None, hands)  # type: ignore[arg-type]
    hands.attach = attach
    return attach, hands


async def live(options: argparse.Namespace) -> None:
    """Run all simulated workers until standard input is closed."""
    names = [f"puppet-{options.first + number}" for number in range(options.count)]
    puppets = [puppet(name, options.seeds, options.slots, options.lasts) for name in names]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_tidy([hands for _, hands in puppets]), name="tidy")]
        for place, (attach, _) in enumerate(puppets):
            tasks.append(group.create_task(attach.run(), name=names[place]))
            if place % AT_A_TIME == AT_A_TIME - 1:
                await asyncio.sleep(STEP)
        await wait_until_async(
            lambda: all(attach.attached and attach.trusted() for attach, _ in puppets),
            ATTACH_WITHIN,
            "the connection of all simulated workers",
            every=STEP,
        )
        print(f"attached {len(puppets)}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()


async def _tidy(all_of_them: Sequence[Hands]) -> NoReturn:
    while True:
        await asyncio.sleep(1.0)
        for hands in all_of_them:
            hands.tidy()


def main(arguments: Sequence[str]) -> int:
    """Run the program."""
    asked = plain_parser("bench.puppets", __doc__)
    asked.add_argument("--seeds", nargs="+", required=True, help="gRPC addresses of members")
    asked.add_argument(
        "--first",
        type=from_zero,
        default=0,
        help="number in the name of the first simulated worker",
    )
    asked.add_argument("--count", type=positive, default=10, help="simulated workers")
    asked.add_argument("--slots", type=positive, default=10, help="slots of each simulated worker")
    asked.add_argument(
        "--lasts", type=seconds_from_zero, default=0.0, help="duration of a run, in seconds"
    )
    options = asked.parse_args(arguments)
    workerd.stream.streams.connect = apart
    asyncio.run(live(options))
    # grpcio's own threads needn't be waited for.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
