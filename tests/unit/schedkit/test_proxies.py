"""Whose word counts about who asks."""

from __future__ import annotations

import pytest

from schedkit.net.proxies import UNKNOWN, Proxies

PROXIES = Proxies.from_texts(["10.0.0.2", "192.168.7.0/24", "2001:db8::/64"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.2", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.2", ["203.0.113.9"], "203.0.113.9"),
        ("2001:db8::1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.2", ["203.0.113.9, 192.168.7.3"], "203.0.113.9"),
        ("10.0.0.2", ["203.0.113.9", "192.168.7.3"], "203.0.113.9"),
        ("10.0.0.2", ["192.168.7.4, 192.168.7.3"], "192.168.7.4"),
        ("10.0.0.2", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.2", ["[2001:db9::9]:4711"], "2001:db9::9"),
        ("10.0.0.2", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.2", [], "10.0.0.2"),
    ],
)
def test_whom_a_trusted_proxy_saw_is_the_client(
    peer: str, forwarded: list[str], client: str
) -> None:
    assert PROXIES.client(peer, forwarded) == client


@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.3", "127.0.0.1", "proxy", ""])
def test_a_stranger_is_the_client_whatever_it_says(peer: str) -> None:
    assert PROXIES.client(peer, ["127.0.0.1"]) == peer
    assert Proxies().client(peer, ["127.0.0.1"]) == peer


def test_what_the_client_itself_claimed_counts_nothing() -> None:
    assert PROXIES.client("10.0.0.2", ["127.0.0.1, 10.0.0.2, 203.0.113.9"]) == "203.0.113.9"
    assert PROXIES.client("10.0.0.2", ["127.0.0.1", "203.0.113.9"]) == "203.0.113.9"


@pytest.mark.parametrize("hop", ["", "localhost", "unknown", "_hidden", "127.0.0.1 x", "[::1", "1"])
def test_a_hop_that_is_no_address_is_nobodys(hop: str) -> None:
    told = PROXIES.client("10.0.0.2", [f"127.0.0.1, {hop}"])
    assert told == UNKNOWN


@pytest.mark.parametrize(
    "text", ["proxy", "10.0.0.1/8", "1.0.0.0/33", "*", "", "0.0.0.0/0", "::/0"]
)
def test_what_is_no_network_or_everybody_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isn't a valid address or network|is everybody"):
        Proxies.from_texts([text])
