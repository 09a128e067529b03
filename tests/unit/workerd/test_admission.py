"""Admission of assignments: accept, start and reject, as pure decisions."""

from __future__ import annotations

import random

import pytest

from workerd.core.admission import (
    GRACE,
    UNKNOWN_FOR,
    Admission,
    AlreadyTaken,
    AssignmentState,
    NotTaken,
    NotYet,
    OfferedBatch,
    RejectReason,
)
from workerd.core.ids import AssignmentKey, Incarnation, RunId, Token

ME = Incarnation("me")


def key(token: int = 1, run: str = "r") -> AssignmentKey:
    return AssignmentKey(RunId(run), Token(token))


def offer(
    token: int = 1,
    *,
    run: str = "r",
    slots: int = 1,
    start_by: float = 5.0,
    not_before: float | None = None,
    incarnation: Incarnation = ME,
) -> OfferedBatch:
    return OfferedBatch([key(token, run)], incarnation, slots, start_by, not_before)


class OneByOne(Admission):
    """Admission of batches of one, which returns the verdict."""

    def answer(
        self, batch: OfferedBatch, judged: float, *, trusted: bool, unable: str = ""
    ) -> AlreadyTaken | NotTaken | None:
        """Return None if the assignment is accepted."""
        return self.offer(batch, judged, trusted=trusted, unable=unable).get(0)

    def begin(
        self, key: AssignmentKey, at: float, judged: float, *, trusted: bool
    ) -> NotYet | RejectReason | None:
        """Return None if the run has started."""
        batch = self.find(key)
        assert batch is not None
        places, answer = self.start(batch, range(1), at, judged, trusted=trusted)
        assert places, "it is held"
        return answer

    def end(self, key: AssignmentKey) -> None:
        """End an execution."""
        batch = self.find(key)
        assert batch is not None
        self.end_executions(batch, [0])


def worker(slots: int = 4) -> OneByOne:
    return OneByOne(slots, ME)


def test_an_offer_is_accepted_started_ended_and_acknowledged() -> None:
    admission = worker(2)
    assert admission.answer(offer(), 0.0, trusted=True) is None
    assert admission.free == 1
    assert admission.begin(key(), 0.0, 0.0, trusted=True) is None
    admission.end(key())
    assert (admission.free, admission.state(key())) == (2, AssignmentState.ENDED)
    admission.acknowledged([key()])
    assert admission.state(key()) is None


@pytest.mark.parametrize(
    ("state", "known"),
    [
        (0, AssignmentState.HELD),
        (1, AssignmentState.RUNNING),
        (2, AssignmentState.ENDED),
        (3, None),
    ],
)
def test_a_repeated_token_gets_the_same_answer_in_every_state(
    state: int, known: AssignmentState | None
) -> None:
    """P4.2: a second copy of its frame is neither rejected nor started again."""
    admission = worker(1)
    admission.answer(offer(), 0.0, trusted=True)
    if state > 0:
        admission.begin(key(), 0.0, 0.0, trusted=True)
    if state > 1:
        admission.end(key())
    if state > 2:
        admission.acknowledged([key()])
    # Not trusted, too late, draining: none of these matters for an accepted token.
    admission.draining = True
    assert admission.answer(offer(), 9.0, trusted=False) == AlreadyTaken(known)


def test_an_assignment_starts_once() -> None:
    admission = worker()
    admission.answer(offer(), 0.0, trusted=True)
    admission.begin(key(), 0.0, 0.0, trusted=True)
    batch = admission.find(key())
    assert batch is not None
    assert admission.start(batch, range(1), 0.0, 0.0, trusted=True) == ([], None)
    assert admission.state(key()) is AssignmentState.RUNNING


def test_a_token_below_the_greatest_seen_is_rejected_as_stale() -> None:
    """P4.2: an owner that was replaced while its frame was in flight starts nothing."""
    admission = worker()
    admission.answer(offer(9), 0.0, trusted=True)
    assert admission.answer(offer(8), 0.0, trusted=True) == NotTaken(
        RejectReason.GREATER_TOKEN_SEEN, Token(9)
    )


def test_a_greater_token_is_a_new_assignment_beside_the_old_one() -> None:
    admission = worker()
    admission.answer(offer(1), 0.0, trusted=True)
    admission.begin(key(1), 0.0, 0.0, trusted=True)
    assert admission.answer(offer(2), 0.0, trusted=True) is None
    assert admission.free == 2


@pytest.mark.parametrize(
    ("why", "how"),
    [
        (RejectReason.OTHER_INCARNATION, {"incarnation": Incarnation("you")}),
        (RejectReason.TOO_LATE, {"start_by": -1.0}),
        (RejectReason.NO_SLOT, {"slots": 5}),
    ],
)
def test_a_rejected_token_stays_rejected(why: RejectReason, how: dict[str, object]) -> None:
    """P4.2: also a token for another incarnation."""
    admission = worker()
    first = admission.answer(offer(**how), 0.0, trusted=True)  # type: ignore[arg-type] # a table
    assert isinstance(first, NotTaken)
    assert first.why is why
    again = admission.answer(offer(), 0.0, trusted=True)
    assert isinstance(again, NotTaken)
    assert again.why is RejectReason.REVOKED
    assert admission.free == 4


def test_an_untrusted_draining_or_unable_worker_accepts_nothing() -> None:
    admission = worker()
    lost = admission.answer(offer(run="a"), 0.0, trusted=False)
    unable = admission.answer(offer(run="b"), 0.0, trusted=True, unable="no such handler")
    admission.draining = True
    draining = admission.answer(offer(run="c"), 0.0, trusted=True)
    assert [each.why for each in (lost, unable, draining) if isinstance(each, NotTaken)] == [
        RejectReason.TOO_LATE, RejectReason.UNABLE, RejectReason.DRAINING,
    ]  # fmt: skip


def test_a_pre_dispatched_assignment_waits_for_its_due_time() -> None:
    """P4.7."""
    admission = worker()
    admission.answer(offer(not_before=3.0, start_by=8.0), 0.0, trusted=True)
    assert admission.state(key()) is AssignmentState.HELD
    assert admission.begin(key(), 2.9, 2.9, trusted=True) == NotYet(3.0)
    assert admission.begin(key(), 3.0, 3.0, trusted=True) is None


@pytest.mark.parametrize("case", ["late", "untrusted", "draining"])
def test_a_start_is_checked_again_when_it_happens(case: str) -> None:
    """P4.1: between the frame and the start the process may have slept."""
    admission = worker()
    admission.answer(offer(not_before=3.0, start_by=8.0), 0.0, trusted=True)
    admission.draining = case == "draining"
    at = 8.1 if case == "late" else 3.0
    verdict = admission.begin(key(), at, at, trusted=case != "untrusted")
    assert isinstance(verdict, RejectReason)
    assert admission.free == 4
    assert admission.state(key()) is None


def test_a_new_incarnation_drops_waiting_assignments_and_keeps_running_ones() -> None:
    admission = worker()
    admission.answer(offer(run="waits", not_before=9.0, start_by=14.0), 0.0, trusted=True)
    admission.answer(offer(run="runs"), 0.0, trusted=True)
    admission.begin(key(run="runs"), 0.0, 0.0, trusted=True)
    ((dropped, places),) = admission.renew(Incarnation("new"))
    assert [dropped.keys[place].run for place in places] == ["waits"]
    assert [each.run for each, _ in admission.holdings()] == ["runs"]
    again = admission.answer(offer(run="x"), 0.0, trusted=True)
    assert isinstance(again, NotTaken)


def test_a_revoke_works_before_the_start_and_not_after_it() -> None:
    admission = worker()
    admission.answer(offer(not_before=3.0), 0.0, trusted=True)
    assert admission.revoke(key(), 1.0)
    assert admission.free == 4
    assert admission.revoke(key(), 1.0), "asked twice, answered alike"
    admission.answer(offer(2), 1.0, trusted=True)
    admission.begin(key(2), 1.0, 1.0, trusted=True)
    assert not admission.revoke(key(2), 1.0)
    admission.end(key(2))
    admission.acknowledged([key(2)])
    assert not admission.revoke(key(2), 1.0), "it did start, though nothing is left of it"


def test_a_revoke_that_overtakes_its_assignment_is_remembered() -> None:
    """P4.2: the revoke was answered `ok`."""
    admission = worker()
    assert admission.revoke(key(7), 0.0)
    verdict = admission.answer(offer(7), 1.0, trusted=True)
    assert isinstance(verdict, NotTaken)
    admission.forget(UNKNOWN_FOR + 1)
    assert admission.answer(offer(7, start_by=9999.0), 1000.0, trusted=True) is None


def test_an_entry_is_forgotten_only_after_its_start_limit() -> None:
    admission = worker()
    admission.answer(offer(start_by=5.0), 0.0, trusted=True)
    admission.begin(key(), 0.0, 0.0, trusted=True)
    admission.forget(5.0 + GRACE)
    assert admission.answer(offer(), 6.0, trusted=True) == AlreadyTaken(AssignmentState.RUNNING), (
        "it still runs"
    )
    admission.end(key())
    admission.acknowledged([key()])
    admission.forget(5.0 + 2 * GRACE)
    verdict = admission.answer(offer(start_by=5.0), 26.0, trusted=True)
    assert isinstance(verdict, NotTaken)
    assert verdict.why is RejectReason.TOO_LATE, "forgotten, and too late to start"


def test_a_rejected_token_is_remembered_as_long_as_it_could_start() -> None:
    """P4.2: a second copy of the frame may still be in flight."""
    admission = worker()
    admission.draining = True
    assert isinstance(admission.answer(offer(start_by=5.0), 0.0, trusted=True), NotTaken)
    admission.draining = False
    admission.forget(4.9)
    verdict = admission.answer(offer(start_by=5.0), 4.9, trusted=True)
    assert isinstance(verdict, NotTaken)
    assert verdict.why is RejectReason.REVOKED


class Compared(str):
    """A run's id that counts comparisons."""

    count = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("token", [1, 2], ids=["same", "greater"])
def test_a_batch_that_is_sent_again_after_its_end_is_decided_in_linear_time(token: int) -> None:
    """The worker's loop does nothing else meanwhile."""
    count = 2_000

    def batch(token: int) -> OfferedBatch:
        keys = [key(token, run=Compared(f"run {number}")) for number in range(count)]
        return OfferedBatch(keys, ME, 1, 5.0)

    admission, first = worker(count), batch(1)
    admission.offer(first, 0.0, trusted=True)
    admission.start(first, range(count), 0.0, 0.0, trusted=True)
    admission.end_executions(first, range(count))
    admission.acknowledged(first.keys)
    Compared.count = 0
    answers = admission.offer(batch(token), 0.0, trusted=True)
    assert len(answers) == (count if token == 1 else 0)
    assert Compared.count < 20 * count


def test_each_token_starts_at_most_once_for_any_order_of_messages() -> None:
    """P4.2: 300 random histories of a worker."""
    for seed in range(300):
        chance = random.Random(seed)
        admission = worker(3)
        started: list[AssignmentKey] = []
        start_by: dict[AssignmentKey, float] = {}
        """Keep the offer for resends."""
        now = 0.0
        for _ in range(120):
            now += chance.random()
            each = key(chance.randint(1, 6), chance.choice("abc"))
            match chance.randint(0, 6):
                case 0 | 1:
                    by = start_by.setdefault(each, now + chance.random() * 5)
                    admission.answer(
                        offer(each.token, run=each.run, start_by=by),
                        now,
                        trusted=chance.random() > 0.1,
                    )
                case 2 | 3 if admission.state(each) is AssignmentState.HELD:
                    verdict = admission.begin(each, now, now, trusted=chance.random() > 0.1)
                    if verdict is None:
                        started.append(each)
                case 4:
                    revoked = admission.revoke(each, now)
                    assert not (revoked and each in started and now < start_by[each])
                case 5 if admission.state(each) is AssignmentState.RUNNING:
                    admission.end(each)
                    admission.acknowledged([each])
                case 6:
                    admission.forget(now)
            assert 0 <= admission.free <= 3
            running = [k for k, s in admission.holdings() if s is not AssignmentState.ENDED]
            assert admission.used == len(running)
        assert len(started) == len({*started})
