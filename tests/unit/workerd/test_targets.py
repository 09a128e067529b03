"""Names whose addresses change: the checked address is the connected one."""

from __future__ import annotations

import pytest

from schedkit.egress.policy import Destinations
from schedkit.egress.targets import ForbiddenTarget, ResolvedAddress, Targets

PUBLIC, INSIDE = "93.184.215.14", "10.0.0.1"


def targets(*answers: tuple[str, ...]) -> Targets:
    """Return targets whose name server returns these addresses, other ones each time."""
    left = [*answers]

    async def look_up(host: str, port: int, family: int) -> list[ResolvedAddress]:
        return [
            ResolvedAddress(hostname=host, host=each, port=port, family=family, proto=0, flags=0)
            for each in left.pop(0)
        ]

    made = Targets(Destinations(), "workerd.toml")
    made._look_up = look_up
    return made


async def test_the_checked_addresses_are_used_and_resolved_once() -> None:
    """A name that resolves otherwise a moment later gains nothing: there is no second lookup."""
    fickle = targets((PUBLIC,), (INSIDE,))
    assert [each["host"] for each in await fickle.resolve("rebinding.example")] == [PUBLIC]
    with pytest.raises(ForbiddenTarget):
        await fickle.resolve("rebinding.example")


@pytest.mark.parametrize("answer", [(PUBLIC, INSIDE), (INSIDE, PUBLIC), ("::1", PUBLIC)])
async def test_a_name_with_one_address_that_isnt_public_is_refused(answer: tuple[str, ...]) -> None:
    with pytest.raises(ForbiddenTarget, match="public address"):
        await targets(answer).resolve("mixed.example")


@pytest.mark.parametrize("host", [INSIDE, "::1", "fc00::1", "::ffff:10.0.0.1"])
async def test_addresses_of_an_address_are_itself_if_it_may_be_called(host: str) -> None:
    assert await targets().addresses(PUBLIC, 1) == [PUBLIC]
    with pytest.raises(ForbiddenTarget, match="public address"):
        await targets().addresses(host, 1)


async def test_addresses_of_a_name_are_all_checked() -> None:
    fickle = targets((PUBLIC, "2600::1"), (PUBLIC, INSIDE))
    assert await fickle.addresses("two.example", 1) == [PUBLIC, "2600::1"]
    with pytest.raises(ForbiddenTarget, match="public address"):
        await fickle.addresses("two.example", 1)


@pytest.mark.parametrize(
    "host",
    [
        *("127.1", "127.0.1", "2130706433", "0", "0177.0.0.1", "127.0.0.01", "127.0.0.1."),
        *("0x7f.1", "0X7F000001", "127.0.0.0x1", "0x", "1.2.3.4.5", "256.1.1.1", "93.184.215.014"),
        *("10.1.", "example.127", "a.0x7f", "\u0661\u0662\u0667.1", "\u2460.1", "::1%", "1::2::3"),
        *(INSIDE, "0.0.0.0", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
async def test_a_text_that_may_be_an_address_is_rejected_unless_it_is_public(
    host: str,
) -> None:
    """A literal passes no resolver, and C libraries accept more than four decimal numbers."""
    with pytest.raises(ForbiddenTarget, match=r"public address|is an unspecified address"):
        targets().check_literal(host, 80)


@pytest.mark.parametrize(
    "host", [PUBLIC, "2600::1", "example.com", "127.1.example", "1e100.net", "x7f.a0x1", "example."]
)
async def test_public_addresses_and_names_pass(host: str) -> None:
    targets().check_literal(host, 80)
