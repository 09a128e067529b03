"""Allow-lists of networks and hosts: allowed, never allowed, and invalid entries."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from schedkit.egress.policy import Destinations, Egress
from schedkit.egress.targets import ForbiddenTarget, ResolvedAddress, Targets

NAMES: Mapping[str, tuple[str, ...]] = {
    "app": ("172.18.0.3",),
    "both.example": ("172.18.0.3", "fd00::3"),
    "public.example": ("93.184.215.14",),
    "api.svc.internal": ("10.96.0.10",),
    "svc.internal": ("10.96.0.11",),
    "trap.svc.internal": ("10.96.0.10", "169.254.169.254"),
    "localhost": ("::1", "127.0.0.1"),
    "metadata.google.internal": ("10.0.0.1",),
}


async def look_up(host: str, port: int, family: int) -> list[ResolvedAddress]:
    """Return the addresses of the names above."""
    return [
        ResolvedAddress(hostname=host, host=each, port=port, family=family, proto=0, flags=0)
        for each in NAMES[host.rstrip(".").lower()]
    ]


def targets(*allow: str) -> Targets:
    made = Targets(Destinations.from_texts(allow), "workerd.toml")
    made._look_up = look_up
    return made


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        *(("10.0.0.0/8", "10.20.30.40"), ("10.0.0.0/8", "::ffff:10.20.30.40")),
        *(
            ("172.16.0.0/12", "app"),
            ("192.168.1.7", "192.168.1.7"),
            ("192.168.0.0/16", "192.168.1.7"),
            ("100.64.0.0/10", "100.64.9.9"),
        ),
        *(("fc00::/7", "fd12:3456::1"), ("[fd00::7]", "fd00::7"), ("0.0.0.0/0", "127.0.0.1")),
        *(("app", "app"), ("APP.", "app"), ("app", "APP."), ("localhost", "localhost")),
        *(("*.svc.internal", "api.svc.internal"), (".svc.internal", "api.svc.internal")),
        *(("both.example", "both.example"), ("198.18.0.0/15", "198.18.0.1")),
        *(("app:8080", "app"), ("10.0.0.0/8:8080", "10.1.1.1"), ("[fd00::/8]:8080", "fd00::7")),
    ],
)
async def test_an_entry_permits_its_networks_and_its_hosts(entry: str, host: str) -> None:
    with pytest.raises(ForbiddenTarget):
        await targets().addresses(host, 8080)
    assert await targets(entry).addresses(host, 8080)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        *(("10.0.0.0/8", "app"), ("app", "172.18.0.3"), ("app", "api.svc.internal")),
        *(("*.svc.internal", "svc.internal"), ("172.16.0.0/12", "both.example")),
        *(("app:80", "app"), ("10.0.0.0/8:443", "10.1.1.1"), ("127.0.0.0/8", "localhost")),
        ("pp", "app"),
    ],
)
async def test_an_entry_permits_nothing_else(entry: str, host: str) -> None:
    with pytest.raises(ForbiddenTarget, match=r"write in workerd\.toml: \[egress\] allow"):
        await targets(entry).addresses(host, 8080)


async def test_public_addresses_need_no_entry() -> None:
    assert await targets("app").addresses("public.example", 443) == ["93.184.215.14"]


@pytest.mark.parametrize(
    "host",
    [
        *("169.254.169.254", "169.254.170.2", "fe80::a9fe:a9fe", "fd00:ec2::254", "fd00:ec2::23"),
        *("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd20:ce::254", "fd00:42::42"),
        *(
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::",
        ),
        *("::169.254.169.254", "2001:0:a9fe:a9fe::1", "2001:0:1::5601:5601", "fe80::1%lo"),
        *("fd00::5efe:a9fe:a9fe", "64:ff9b::6464:64c8", "::ffff:0.0.0.0"),
        *("0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"),
        *("trap.svc.internal", "metadata.google.internal", "METADATA.google.internal."),
        *("metadata.goog", "instance-data"),
    ],
)
async def test_metadata_services_and_link_local_addresses_are_rejected_with_any_allow_list(
    host: str,
) -> None:
    everything = targets("0.0.0.0/0", "::/0", "*.internal", "*.svc.internal")
    with pytest.raises(ForbiddenTarget, match="jobs and webhooks can't call it"):
        await everything.addresses(host, 80)


async def test_the_error_names_the_address_the_setting_and_how_to_write_it() -> None:
    with pytest.raises(ForbiddenTarget) as refused:
        await targets().addresses("app", 8080)
    assert str(refused.value) == (
        "the target app, which resolves to 172.18.0.3, isn't a public address, and jobs and"
        " webhooks call only public addresses."
        ' To permit this target, write in workerd.toml: [egress] allow = ["app"]'
    )
    with pytest.raises(ForbiddenTarget, match=r'10\.0\.0\.5 isn.t .* allow = \["10\.0\.0\.5"\]'):
        targets().check_literal("10.0.0.5", 80)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("10.1.2.3/8", "write '10.0.0.0/8'"),
        ("http://app:8080/x", "is a URL: write only the host"),
        ("http://app", "is a URL"),
        ("169.254.169.254", "can't be allowed"),
        ("fe80::/64", "can't be allowed"),
        ("metadata.google.internal", "can't be allowed"),
        ("::ffff:10.0.0.1", "write '10.0.0.1'"),
        ("*", "allow every address"),
        ("*app", "isn't valid: write a network"),
        ("10.0.0", "isn't valid: write a network"),
        ("10.0.0.0/33", "isn't valid: write a network"),
        ("0x7f.1", "isn't valid: write a network"),
        ("a b", "isn't valid: write a network"),
        ("", "isn't valid: write a network"),
        ("app:99999", "no valid port"),
        ("app:", "no valid port"),
        ("[fd00::7", "isn't a valid IPv6 host"),
        ("app/8", "isn't valid: write a network"),
    ],
)
def test_an_invalid_entry_is_a_problem(entry: str, why: str) -> None:
    (problem,) = Egress(allow=("10.0.0.0/8", entry)).faults()
    assert problem.where == "allow"
    assert why in problem.what
