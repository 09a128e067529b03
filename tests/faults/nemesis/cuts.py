"""Faults of the network: groups of hosts that don't reach each other, one way or both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from faults.nemesis.journal import Fault, Journal, NoEffect
from faults.world.network import Host, Network


@contextmanager
def cut(
    journal: Journal,
    network: Network,
    ones: Sequence[Host],
    others: Sequence[Host],
    *,
    back: bool = True,
) -> Iterator[Fault]:
    """Nothing that `ones` send reaches `others`; with `back`, nor the other way.

    Packets are dropped in silence. Verified by datagrams, at the begin and at the end of the block.
    """
    ways = [(one, other) for one in ones for other in others]
    if back:
        ways += [(other, one) for one, other in ways]
    arrow = "<->" if back else "->"
    target = f"{_names(ones)} {arrow} {_names(others)}"
    with journal.fault("cut", target) as fault:
        done: list[tuple[Host, Host]] = []
        try:
            for one, other in ways:
                network.cut(one, other)
                done.append((one, other))
            _judge(network, ways, passes=False)
            if not back:
                _judge(network, [(other, one) for one, other in ways], passes=True)
            fault.took_effect(what="datagrams get lost", ways=len(ways))
            yield fault
            _judge(network, ways, passes=False)
        finally:
            fault.end()
            for one, other in done:
                network.reconnect(one, other)
        _judge(network, ways, passes=True)


def _judge(network: Network, ways: Sequence[tuple[Host, Host]], *, passes: bool) -> None:
    # One lost datagram costs its whole timeout: of many pairs one way each is enough.
    for one, other in ways[:: max(1, len(ways) // 4)]:
        if network.passes(one, other, 2.0 if passes else 0.15) != passes:
            state = "doesn't pass" if passes else "still passes"
            raise NoEffect(f"what {one.name} sends to {other.name} {state}")


def _names(hosts: Sequence[Host]) -> str:
    return ",".join(host.name for host in hosts)
