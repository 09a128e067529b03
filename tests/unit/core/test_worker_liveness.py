"""Lost workers among those without a key (P6.4; the model's rule `deletion-watched`)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.cluster.coordination import Revision
from schedd.core.cluster.worker_liveness import AbsenceTracker, LivenessSnapshot, WatchedDeletions
from schedd.core.ids import Id, IncarnationId

TTL = 3.0
ONE, OTHER = IncarnationId(Id.from_int(1)), IncarnationId(Id.from_int(2))
NOTHING: Mapping[IncarnationId, Revision] = {}


class Eyes:
    """A member that reads lists at later and later revisions; an answer takes 10 ms."""

    def __init__(self) -> None:
        self.absence = AbsenceTracker(TTL)
        self.revision = 100

    def look(
        self,
        at: float,
        *,
        live: frozenset[IncarnationId] = frozenset(),
        named: frozenset[IncarnationId] = frozenset({ONE}),
        departed: Mapping[IncarnationId, Revision] = NOTHING,
        cluster: int = 1,
        takes: float = 0.01,
        revision: int = 0,
    ) -> frozenset[IncarnationId]:
        """Return the lost workers, by a list that was requested at `at`."""
        self.revision = revision or self.revision + 1
        seen = LivenessSnapshot(live, 1, Revision(self.revision), at, at + takes)
        return self.absence.judge(named, seen, WatchedDeletions(cluster, departed)).gone


def deletion(at: int, of: IncarnationId = ONE) -> dict[IncarnationId, Revision]:
    return {of: Revision(at)}


def test_deletion_watched_a_worker_whose_deletion_was_seen_is_lost_at_once() -> None:
    assert Eyes().look(0.0, departed=deletion(50)) == {ONE}


def test_deletion_watched_a_key_that_is_merely_missing_is_no_loss() -> None:
    """P6.4: a newly started member sees a worker so after a restore of etcd."""
    assert Eyes().look(0.0) == frozenset()


def test_deletion_watched_a_missing_key_is_lost_after_a_ttl_of_close_lists() -> None:
    """P6.4: within that time a running worker makes its key again."""
    eyes = Eyes()
    for look in range(7):
        assert eyes.look(look * TTL / 6) == frozenset()
    assert eyes.look(TTL + 0.02) == {ONE}


def test_a_watched_deletion_restarts_the_absence_after_a_gap_between_two_lists() -> None:
    """P6.4: the key may have existed in the gap, and been removed by another restore."""
    eyes = Eyes()
    for at in (0.0, 0.9, 1.8, 2.82):
        assert eyes.look(at) == frozenset()
    for at in (3.4, 4.2, 5.0, 5.8):
        assert eyes.look(at) == frozenset()
    assert eyes.look(5.9) == {ONE}


def test_deletion_watched_a_slow_answer_makes_a_gap() -> None:
    """The list may have been made at any moment between its sending and its answer."""
    eyes = Eyes()
    for at in (0.0, 0.9, 1.8):
        eyes.look(at)
    assert eyes.look(2.7, takes=0.2) == frozenset()
    assert eyes.look(3.1) == frozenset()


def test_deletion_watched_a_key_seen_in_between_restarts_the_absence() -> None:
    eyes = Eyes()
    eyes.look(0.0)
    eyes.look(0.9)
    eyes.look(1.5, live=frozenset({ONE}))
    for at in (2.0, 2.9, 3.8):
        assert eyes.look(at) == frozenset()


def test_a_worker_named_later_is_missing_from_then_on() -> None:
    eyes = Eyes()
    for at in (0.0, 0.9, 1.8, 2.7):
        eyes.look(at, named=frozenset({OTHER}))
    assert eyes.look(3.2, named=frozenset({ONE, OTHER})) == {OTHER}
    assert eyes.absence.missing == {ONE, OTHER}


def test_no_worker_is_missing_after_a_clear() -> None:
    eyes = Eyes()
    eyes.look(0.0)
    eyes.absence.clear()
    assert eyes.absence.missing == frozenset()


def test_a_worker_with_a_key_is_never_lost_after_a_watched_deletion() -> None:
    """The key was made again; the watch will report that."""
    assert Eyes().look(0.0, live=frozenset({ONE}), departed=deletion(50)) == frozenset()


@pytest.mark.parametrize(
    ("at", "cluster"), [(50, 2), (102, 1)], ids=["another cluster", "after the list"]
)
def test_deletion_watched_in_another_history_than_the_lists_counts_for_nothing(
    at: int, cluster: int
) -> None:
    """P6.4: the watch hasn't broken yet, and the list is the restored etcd's."""
    assert Eyes().look(0.0, departed=deletion(at), cluster=cluster) == frozenset()


def test_deletion_watched_before_a_list_that_has_the_key_again_counts_for_nothing() -> None:
    """P6.4: the watch lags; it hasn't reported the new key, which a restore has removed since."""
    eyes = Eyes()
    eyes.look(0.0, live=frozenset({ONE}))
    assert eyes.look(0.5, departed=deletion(50)) == frozenset()
    assert eyes.look(0.9, departed=deletion(102)) == {ONE}


@pytest.mark.parametrize("departed", [NOTHING, deletion(105)], ids=["nothing", "the deletion"])
def test_deletion_watched_before_a_list_that_was_judged_before_an_older_one_counts_for_nothing(
    departed: Mapping[IncarnationId, Revision],
) -> None:
    """P6.4: both were made at the same time. The newer list has the key that was made again."""
    eyes, there = Eyes(), frozenset({ONE})
    eyes.look(0.01, live=there, revision=110, departed=departed)
    eyes.look(0.0, live=there, revision=100, departed=departed)
    assert eyes.look(0.5, revision=111, departed=deletion(105)) == frozenset()
    assert eyes.look(0.6, revision=113, departed=deletion(112)) == {ONE}


@given(
    looks=st.lists(
        st.tuples(st.floats(0.05, 1.2), st.booleans(), st.sampled_from([0.0, 0.02, 0.3])),
        max_size=40,
    )
)
def test_deletion_watched_no_worker_is_lost_that_may_have_had_a_key_within_the_last_ttl(
    looks: list[tuple[float, bool, float]],
) -> None:
    """Between two lists more than TTL / 3 apart any worker may have had a key."""
    eyes, at, may_have_been_there = Eyes(), 0.0, 0.0
    last_sent = -TTL
    for pause, there, takes in looks:
        at += pause
        gone = eyes.look(at, live=frozenset({ONE}) if there else frozenset(), takes=takes)
        if there or at + takes - last_sent > TTL / 3:
            may_have_been_there = at
        assert not gone or at - may_have_been_there > TTL - 1e-9, "but for rounding"
        last_sent, at = at, at + takes
