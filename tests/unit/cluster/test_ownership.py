"""The writes an owner may try, and the tokens it issues."""

import asyncio

import pytest

from schedd.cluster.ownership import ExhaustedEpoch
from schedd.core.ids import SEQUENCES, Epoch, ShardId, epoch_of
from support.runs import owning
from support.wait import WAIT_TIMEOUT


def test_tokens_grow_within_an_epoch_and_across_epochs():
    ownership = owning(3, epoch=5)
    first = ownership.sequencer(ownership.claim([ShardId(3)]))
    tokens = [first(ShardId(3)) for _ in range(3)]
    ownership.gain({ShardId(3): Epoch(6)})
    second = ownership.sequencer(ownership.claim([ShardId(3)]))
    tokens.append(second(ShardId(3)))
    assert tokens == sorted(set(tokens))
    assert [epoch_of(token) for token in tokens] == [5, 5, 5, 6]


def test_a_claim_gives_tokens_of_its_own_epoch_though_the_shard_was_dropped_meanwhile():
    ownership = owning(3, epoch=5)
    claim = ownership.claim([ShardId(3)])
    give = ownership.sequencer(claim)
    ownership.drop([ShardId(3)])
    assert epoch_of(give(ShardId(3))) == 5


def test_two_claims_of_one_epoch_never_give_the_same_token():
    ownership = owning(3)
    one, other = (ownership.sequencer(ownership.claim([ShardId(3)])) for _ in range(2))
    assert len({one(ShardId(3)), other(ShardId(3)), one(ShardId(3))}) == 3


def test_an_epoch_without_sequence_numbers_left_gives_no_token():
    """P1.8: the next number would be one of the epoch above."""
    ownership = owning(3)
    claim = ownership.claim([ShardId(3)])
    ownership._sequences[ShardId(3), Epoch(5)] = SEQUENCES
    with pytest.raises(ExhaustedEpoch):
        ownership.sequencer(claim)(ShardId(3))


def test_a_claim_names_only_owned_shards():
    ownership = owning(1, 2)
    assert set(ownership.claim([ShardId(1), ShardId(9)]).epochs) == {1}


async def test_a_release_waits_for_the_transactions_of_its_lanes_alone():
    ownership = owning(0, 1, lanes=2)
    with ownership.in_flight(1):
        async with asyncio.timeout(WAIT_TIMEOUT):
            await ownership.wait_for_transactions([ShardId(0)])
        waiting = asyncio.create_task(ownership.wait_for_transactions([ShardId(1)]))
        await asyncio.sleep(0)
        assert not waiting.done()
    async with asyncio.timeout(WAIT_TIMEOUT):
        await waiting


def test_listeners_are_notified_of_each_change_once():
    ownership = owning(1)
    received: list[tuple[set[int], set[int]]] = []
    ownership.listen(lambda gained, dropped: received.append((set(gained), set(dropped))))
    ownership.gain({ShardId(2): Epoch(1)})
    ownership.drop([ShardId(2), ShardId(77)])
    ownership.drop([ShardId(2)])
    assert received == [({2}, set()), (set(), {2})]


async def test_a_release_ends_despite_later_transactions_of_its_lane():
    ownership = owning(0, lanes=1)
    first = ownership.in_flight(0)
    first.__enter__()
    waiting = asyncio.create_task(ownership.wait_for_transactions([ShardId(0)]))
    await asyncio.sleep(0)
    with ownership.in_flight(0):  # the next transaction begins before the first has ended
        assert not waiting.done(), "the first may still write"
        first.__exit__(None, None, None)
        async with asyncio.timeout(WAIT_TIMEOUT):
            await waiting
