"""Grants, trust, cluster time, capture and outcomes: the other pure decisions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from workerd.core.capture import FINEST, KEEP, MOST_MARKS, Capture, Piece
from workerd.core.cluster_time import JudgingClock, MemberTime, RoundTrip
from workerd.core.ids import Address, AssignmentKey, RunId, Token
from workerd.core.lease_trust import WorkerLeaseTrust
from workerd.core.outcome import (
    MOST_WORDS,
    AttemptOutcome,
    AttemptVerdict,
    Cause,
    Content,
    OutcomeReason,
    digest,
    exited,
    judged,
    stopped,
)
from workerd.core.resource_limits import WITHIN, LimitExceeded, ResourceLimits
from workerd.core.slot_split import DemandHead, Share, deal

A, B, C = Address("a:1"), Address("b:1"), Address("c:1")
LOW, MEDIUM, HIGH = 1, 2, 3
NOW = datetime(2026, 1, 1, tzinfo=UTC)


# -- Grants --


def slots(dealt: Mapping[Address, Share]) -> dict[Address, int]:
    return {member: share.slots for member, share in dealt.items()}


def test_slots_without_demand_are_split_evenly_and_the_remainder_does_not_move() -> None:
    assert slots(deal(7, {A: [], B: [], C: []}, {C: 3})) == {A: 2, B: 2, C: 3}


def test_the_best_head_is_served_first_for_any_member() -> None:
    heads = {A: [DemandHead(LOW, 100.0, 5)], B: [DemandHead(HIGH, 100.0, 2)], C: []}
    assert slots(deal(4, heads, {})) == {A: 2, B: 2, C: 0}


def test_waiting_raises_a_head_by_one_class_a_minute() -> None:
    def winner(waiting: float) -> Address:
        heads = {A: [DemandHead(LOW, 1000.0 - waiting, 1)], B: [DemandHead(HIGH, 1000.0, 1)]}
        granted = slots(deal(1, heads, {}))
        return max(granted, key=lambda each: granted[each])

    assert winner(119.0) == B
    assert winner(121.0) == A


def test_grants_never_exceed_the_free_slots() -> None:
    chance = random.Random(1)
    for _ in range(500):
        members = [Address(f"m{n}:1") for n in range(chance.randint(0, 5))]
        demands = {
            each: [
                DemandHead(chance.randint(1, 3), chance.random() * 500, chance.randint(0, 30))
                for _ in range(chance.randint(0, 3))
            ]
            for each in members
        }
        free = chance.randint(-1, 40)
        granted = slots(deal(free, demands, {}))
        assert granted.keys() == demands.keys()
        assert sum(granted.values()) == (max(free, 0) if members else 0)
        assert all(slots >= 0 for slots in granted.values())


def test_reserved_slots_of_another_member_are_granted_when_they_are_released() -> None:
    demands = {A: [DemandHead(HIGH, 100.0, 4)], B: []}
    assert slots(deal(4, demands, {}, kept={A: 0, B: 3})) == {A: 1, B: 0}
    assert slots(deal(4, demands, {}, kept={A: 1, B: 2})) == {A: 2, B: 0}, "its own are its own"
    assert slots(deal(4, demands, {}, kept={A: 2, B: 0})) == {A: 4, B: 0}


def test_reserved_slots_go_to_the_best_heads_when_their_member_has_no_demand() -> None:
    demands = {
        A: [DemandHead(HIGH, 100.0, 1), DemandHead(LOW, 100.0, 9)],
        B: [DemandHead(MEDIUM, 100.0, 5)],
        C: [],
    }
    dealt = deal(15, demands, {}, kept={C: 12})
    assert slots(dealt) == {A: 1, B: 2, C: 0}
    assert dealt[A].before == DemandHead(MEDIUM, 100.0, 5)


def test_slots_that_are_collected_for_a_wide_run_go_to_no_other() -> None:
    demands = {A: [DemandHead(HIGH, 100.0, 4, least=4)], B: [DemandHead(LOW, 100.0, 4)], C: []}
    assert slots(deal(4, demands, {}, kept={C: 2}))[B] == 0


def test_granted_and_reserved_slots_never_exceed_the_free_slots() -> None:
    chance = random.Random(4)
    for _ in range(500):
        members = [Address(f"m{n}:1") for n in range(chance.randint(1, 4))]
        demands = {
            each: [
                DemandHead(
                    chance.randint(1, 3), chance.random() * 500, width * chance.randint(1, 9), width
                )
                for width in chance.sample(range(1, 5), chance.randint(0, 3))
            ]
            for each in members
        }
        free, kept = chance.randint(0, 40), dict.fromkeys(members, 0)
        for _ in range(chance.randint(0, free)):
            kept[chance.choice(members)] += 1
        granted = slots(deal(free, demands, {}, kept=kept))
        assert sum(max(granted[each], kept[each]) for each in members) <= free
        unreserved = slots(deal(free, demands, {}))
        assert all(min(unreserved[m], kept[m]) <= granted[m] <= unreserved[m] for m in members)


def test_a_share_names_the_best_head_of_others_that_gets_no_slot() -> None:
    high, low = DemandHead(HIGH, 100.0, 2), DemandHead(LOW, 100.0, 1)
    other, last = DemandHead(HIGH, 101.0, 1), DemandHead(LOW, 90.0, 1)
    dealt = deal(2, {A: [high, low], B: [other], C: [last]}, {})
    assert dealt == {A: Share(2, before=other), B: Share(0, before=last), C: Share(0, before=other)}


def test_a_partly_served_head_has_priority_over_other_members_heads_only() -> None:
    dealt = deal(1, {A: [DemandHead(HIGH, 100.0, 2)], B: [DemandHead(LOW, 100.0, 1)]}, {})
    assert dealt[A] == Share(1, before=DemandHead(LOW, 100.0, 1))
    assert dealt[B].before == DemandHead(HIGH, 100.0, 2)


def test_slots_left_after_all_heads_are_for_any_run() -> None:
    dealt = deal(3, {A: [DemandHead(HIGH, 100.0, 1)], B: [DemandHead(LOW, 100.0, 1)], C: []}, {})
    assert {share.before for share in dealt.values()} == {None}


def test_slots_too_few_for_a_wide_run_go_to_other_heads() -> None:
    wide = DemandHead(HIGH, 100.0, 4, least=4)
    dealt = deal(
        3, {A: [wide, DemandHead(LOW, 100.0, 1)], B: [DemandHead(LOW, 99.0, 2)]}, {}, now=159.0
    )
    assert dealt == {A: Share(1), B: Share(2)}


def test_a_wide_run_gets_no_part_of_its_slots() -> None:
    wide, low = DemandHead(HIGH, 101.0, 2, least=2), DemandHead(LOW, 100.0, 1)
    dealt = deal(3, {A: [DemandHead(HIGH, 100.0, 2)], B: [wide], C: [low]}, {})
    assert slots(dealt) == {A: 2, B: 0, C: 1}
    assert dealt[C].before == wide, "if A gives its two back they are for the wide one"


def test_slots_are_collected_for_a_wide_run_in_turns_with_other_runs() -> None:
    """Running runs may never end, so other runs must get slots in between."""
    demands = {A: [DemandHead(HIGH, 100.0, 4, least=4)], B: [DemandHead(LOW, 100.0, 9)]}
    minutes = [0.9, 1.0, 1.9, 2.0, 3.9, 4.0, 7.9, 8.0, 15.9, 16.0]
    kept = [slots(deal(3, demands, {}, now=100.0 + 60 * each))[A] == 3 for each in minutes]
    assert kept == [False, True, True, False, False, True, True, False, False, True]


# -- Trust --


def test_trust_runs_from_the_sending_and_ends_a_margin_before_the_ttl() -> None:
    """P6.3: trust must end before the key can."""
    trust = WorkerLeaseTrust(ttl=15.0)
    assert not trust.holds(0.0)
    trust.refreshed(100.0)
    assert trust.holds(111.9)
    assert not trust.holds(112.0)
    assert WorkerLeaseTrust(3.0, 100.0).until == 102.0, "the margin is a second at least"


def test_a_late_answer_does_not_shorten_trust() -> None:
    trust = WorkerLeaseTrust(ttl=15.0)
    trust.refreshed(100.0)
    trust.refreshed(95.0)
    assert trust.until == 112.0


def test_the_age_of_a_lease_that_was_never_refreshed_is_its_ttl() -> None:
    assert WorkerLeaseTrust(15.0).since(3.0) == 15.0
    assert WorkerLeaseTrust(15.0, 1.0).since(3.0) == 2.0


# -- Cluster time --


def readings(chance: random.Random, offset: float) -> list[RoundTrip]:
    """Return consecutive round trips between clocks that are `offset` apart."""
    trips: list[RoundTrip] = []
    boot = 50.0
    for _ in range(chance.randint(1, 20)):
        sent = boot + chance.random()
        read = sent + chance.random() * 0.3
        boot = read + chance.random() * 0.3
        trips.append(RoundTrip(sent, boot, read + offset))
    return trips


def test_a_time_counts_as_reached_only_after_it_for_certain() -> None:
    chance = random.Random(2)
    for _ in range(200):
        offset = chance.uniform(-1e6, 1e6)
        time = MemberTime()
        for trip in readings(chance, offset):
            time.observe(trip)
        assert time.surely_reached(1000.0 + offset) >= 1000.0 - 1e-6
        assert time.latest(1000.0) >= 1000.0 + offset - 1e-6
        assert time.width <= 0.6


def test_the_shortest_of_the_last_eight_round_trips_counts() -> None:
    time = MemberTime()
    time.observe(RoundTrip(0.0, 0.001, 1000.0))
    assert time.width == pytest.approx(0.001)
    for n in range(8):
        time.observe(RoundTrip(10.0 + n, 10.5 + n, 1010.0 + n))
    assert time.width == pytest.approx(0.5)


@pytest.mark.parametrize("set_by", [-3.0, 3600.0])
def test_readings_from_before_a_clock_change_are_dropped(set_by: float) -> None:
    """Otherwise pre-dispatched runs start too early or too late for eight heartbeats."""
    time = MemberTime()
    assert not time.observe(RoundTrip(0.0, 0.001, 1000.0))
    assert not time.observe(RoundTrip(5.0, 5.004, 1005.002))
    assert time.observe(RoundTrip(10.0, 10.01, 1010.005 + set_by)), "it contradicts the others"
    assert time.surely_reached(1020.0 + set_by) == pytest.approx(20.0, abs=0.01)
    assert time.surely_reached(1020.0 + set_by) >= 20.0
    assert time.latest(20.0) == pytest.approx(1020.0 + set_by, abs=0.01)


def test_a_slow_reading_does_not_contradict_a_quick_one() -> None:
    time = MemberTime()
    time.observe(RoundTrip(0.0, 0.001, 1000.0))
    for read in (0.0, 0.4, 0.8):
        assert not time.observe(RoundTrip(5.0, 5.8, 1005.0 + read))
    assert time.width == pytest.approx(0.001)


def test_the_clock_for_start_limits_never_goes_back_and_is_never_behind() -> None:
    """P4.1: a clock that is behind would start runs past their start limit."""
    chance = random.Random(3)
    for _ in range(200):
        offset = chance.uniform(-100, 100)
        clock, last = JudgingClock(), float("-inf")
        for trip in readings(chance, offset):
            clock.observe(trip)
            read = clock.read(trip.received)
            assert read >= last
            assert read >= trip.received + offset - 1e-6
            last = read


def test_a_clock_with_great_uncertainty_is_unknown() -> None:
    clock = JudgingClock()
    assert not clock.known
    clock.observe(RoundTrip(0.0, 3.0, 1000.0))
    assert not clock.known
    clock.observe(RoundTrip(5.0, 5.01, 1005.0))
    assert clock.known


def test_events_are_dated_by_the_middle_of_the_shortest_reading() -> None:
    clock = JudgingClock()
    assert clock.date(1.0) is None, "not known yet"
    clock.observe(RoundTrip(0.0, 0.5, 1000.0))
    clock.observe(RoundTrip(1.0, 1.1, 1001.0))
    assert clock.date(11.05) == pytest.approx(1011.0)


# -- Capture --


@pytest.mark.parametrize("total", [0, 1, KEEP, KEEP + 1, 2 * KEEP, 2 * KEEP + 1, 10 * KEEP + 77])
@pytest.mark.parametrize("chunk", [1 << 20, 4096, 777])
def test_capture_keeps_the_first_and_the_last_part_of_the_stream(total: int, chunk: int) -> None:
    stream = random.Random(total).randbytes(total)
    capture = Capture(stderr=False)
    for at in range(0, total, chunk):
        capture.feed(stream[at : at + chunk], NOW)
    pieces = capture.pieces()
    assert sum(len(piece.data) + piece.omitted for piece in pieces) == total
    for piece in pieces:
        assert piece.data == stream[piece.offset : piece.offset + len(piece.data)]
    if total > 2 * KEEP:
        assert [len(piece.data) for piece in pieces] == [KEEP, KEEP]
    elif total:
        assert sum(piece.omitted for piece in pieces) == 0


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 5, 40, 3_000])
@pytest.mark.parametrize("size", [1, 100, 5_000])
def test_captured_output_has_the_time_of_each_part(writes: int, size: int) -> None:
    chance = random.Random(writes * size)
    capture, stream, read = Capture(stderr=False), b"", dict[int, datetime]()
    at = NOW
    for _ in range(writes):
        at += timedelta(seconds=chance.choice([0, 0.001, 0.02, 3]))
        read[len(stream)] = at
        part = chance.randbytes(size)
        capture.feed(part, at)
        stream += part

    pieces = capture.pieces()

    assert len(pieces) <= 2 * MOST_MARKS
    place = 0
    for piece in pieces:
        assert piece.offset == place + piece.omitted
        assert piece.data == stream[piece.offset : piece.offset + len(piece.data)]
        assert piece.at <= read[max(start for start in read if start <= piece.offset)]
        place = piece.offset + len(piece.data)
    assert place == len(stream)
    assert [piece.at for piece in pieces] == sorted(piece.at for piece in pieces)
    if writes == 5:
        apart = [b - a >= FINEST for a, b in pairwise(read.values())]
        assert len(pieces) > sum(apart) / 2, "lines that were written apart are kept apart"


# -- Outcomes --


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"reading\nno such table: orders\n\n", "no such table: orders"),
        (b"half a l\xc3\xa9\xff\tine", "half a l\u00e9\ufffd ine"),
        (b"x" * 4_000, "x" * (MOST_WORDS - 1) + "\u2026"),
        (b"\x1b[31mred\x1b[0m\r\n", "[31mred [0m"),
    ],
)
def test_an_error_ends_with_the_last_output_of_the_program(written: bytes, words: str) -> None:
    out = Piece(stderr=False, data=b"all is well\n", offset=0, at=NOW)
    said = Piece(stderr=True, data=written, offset=0, at=NOW)
    suffix = f": {words}" if words else ""
    assert exited(3, (out, said)).error == f"exit code 3{suffix}"
    assert exited(-9, (out, said)).error == f"ended by SIGKILL{suffix}"
    assert exited(0, (out, said)).error == ""


@pytest.mark.parametrize(
    ("code", "verdict", "reason", "shown"),
    [
        (0, AttemptVerdict.SUCCEEDED, OutcomeReason.NONE, 0),
        (1, AttemptVerdict.FAILED, OutcomeReason.EXIT_CODE, 1),
        (100, AttemptVerdict.FAILED, OutcomeReason.DONT_RETRY, 100),
        (-9, AttemptVerdict.FAILED, OutcomeReason.SIGNAL, 137),
    ],
)
def test_an_exit_code_decides_verdict_and_reason(
    code: int, verdict: AttemptVerdict, reason: OutcomeReason, shown: int
) -> None:
    outcome = exited(code, ())
    assert (outcome.verdict, outcome.reason, outcome.exit_code) == (verdict, reason, shown)


@pytest.mark.parametrize(
    ("cause", "verdict", "reason"),
    [
        (Cause.TIMEOUT, AttemptVerdict.FAILED, OutcomeReason.TIMEOUT),
        (Cause.CANCEL, AttemptVerdict.CANCELLED, OutcomeReason.BY_USER),
        (Cause.DRAIN, AttemptVerdict.RETURNED, OutcomeReason.NONE),
        (Cause.LEASE_LOST, AttemptVerdict.RETURNED, OutcomeReason.WORKER_LOST),
    ],
)
def test_the_cause_of_the_stop_is_the_reason(
    cause: Cause, verdict: AttemptVerdict, reason: OutcomeReason
) -> None:
    outcome = stopped(cause)
    assert (outcome.verdict, outcome.reason) == (verdict, reason)


def test_the_digest_separates_a_repetition_from_a_contradiction() -> None:
    key = AssignmentKey(RunId("r"), Token(1))
    one = AttemptOutcome(AttemptVerdict.SUCCEEDED, result=Content(b"1", json=True))
    assert digest(key, one) == digest(
        key, AttemptOutcome(AttemptVerdict.SUCCEEDED, result=one.result)
    )
    others = [
        digest(AssignmentKey(RunId("r"), Token(2)), one),
        digest(key, AttemptOutcome(AttemptVerdict.SUCCEEDED, result=Content(b"1", json=False))),
        digest(key, AttemptOutcome(AttemptVerdict.SUCCEEDED)),
        digest(key, AttemptOutcome(AttemptVerdict.FAILED, result=one.result)),
        digest(key, AttemptOutcome(AttemptVerdict.SUCCEEDED, exit_code=0, result=one.result)),
    ]
    assert len({digest(key, one), *others}) == 6


def test_the_digest_never_changes() -> None:
    """A spool written by an older version is sent by a newer one."""
    outcome = AttemptOutcome(
        AttemptVerdict.FAILED, OutcomeReason.EXIT_CODE, "exit code 3", exit_code=3
    )
    assert digest(AssignmentKey(RunId("r"), Token(1)), outcome).hex() == (
        "ab69404c2ae8edff1530efc945e2306ee3d50bbd2cf3655766a6c359b297fb0c"
    )


BOUNDS = ResourceLimits(memory=3 << 19, processes=4)


@pytest.mark.parametrize("code", [0, 1, -9])
def test_a_run_killed_for_lack_of_memory_failed_for_any_exit_code(
    code: int,
) -> None:
    outcome = judged(exited(code, ()), BOUNDS, LimitExceeded(memory=True, processes=True))
    assert (outcome.verdict, outcome.reason) == (AttemptVerdict.FAILED, OutcomeReason.SIGNAL)
    assert (outcome.error, outcome.exit_code) == ("killed: out of memory (limit 1536 KiB)", 137)


def test_the_process_limit_is_named_only_if_the_run_failed() -> None:
    wanted = LimitExceeded(processes=True)
    error = judged(exited(2, ()), BOUNDS, wanted).error
    assert error == "exit code 2; process limit reached (limit 4)"
    assert judged(exited(0, ()), BOUNDS, wanted) == exited(0, ())
    assert judged(exited(2, ()), BOUNDS, WITHIN) == exited(2, ())
