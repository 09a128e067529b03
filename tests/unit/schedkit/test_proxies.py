"""Client addresses behind proxies: which headers are trusted."""

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
def test_the_address_that_a_trusted_proxy_saw_is_the_client(
    peer: str, forwarded: list[str], client: str
) -> None:
    assert PROXIES.client(peer, forwarded) == client


@pytest.mark.parametrize("peer", ["203.0.113.9", "10.0.0.3", "127.0.0.1", "proxy", ""])
def test_an_untrusted_peer_is_the_client_for_any_header(peer: str) -> None:
    assert PROXIES.client(peer, ["127.0.0.1"]) == peer
    assert Proxies().client(peer, ["127.0.0.1"]) == peer


def test_an_address_that_the_client_itself_sent_is_ignored() -> None:
    assert PROXIES.client("10.0.0.2", ["127.0.0.1, 10.0.0.2, 203.0.113.9"]) == "203.0.113.9"
    assert PROXIES.client("10.0.0.2", ["127.0.0.1", "203.0.113.9"]) == "203.0.113.9"


@pytest.mark.parametrize("hop", ["", "localhost", "unknown", "_hidden", "127.0.0.1 x", "[::1", "1"])
def test_a_hop_that_is_no_address_is_unknown(hop: str) -> None:
    client = PROXIES.client("10.0.0.2", [f"127.0.0.1, {hop}"])
    assert client == UNKNOWN


@pytest.mark.parametrize(
    "text", ["proxy", "10.0.0.1/8", "1.0.0.0/33", "*", "", "0.0.0.0/0", "::/0"]
)
def test_an_invalid_network_or_all_addresses_are_rejected(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"isn't a valid address or network|contains every address"
    ):
        Proxies.from_texts([text])
