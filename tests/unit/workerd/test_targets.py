"""Names that change their minds: what is checked is what is connected to."""

from __future__ import annotations

import socket

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from schedkit.outward.targets import ForbiddenTarget, Targets

PUBLIC, INSIDE = "93.184.215.14", "10.0.0.1"


class Fickle(AbstractResolver):
    """A name server that gives other addresses each time."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self.answers = [*answers]

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=each, port=port, family=family, proto=0, flags=0)
            for each in self.answers.pop(0)
        ]

    async def close(self) -> None:
        pass


def targets(*answers: tuple[str, ...]) -> Targets:
    made = Targets(allow_loopback=False)
    made._inner = Fickle(*answers)  # type: ignore[assignment]
    return made


async def test_what_was_checked_is_what_is_given_and_it_is_asked_once() -> None:
    """A name that answers otherwise a moment later gains nothing: nobody asks it again."""
    fickle = targets((PUBLIC,), (INSIDE,))
    assert [each["host"] for each in await fickle.resolve("rebinding.example")] == [PUBLIC]
    with pytest.raises(ForbiddenTarget):
        await fickle.resolve("rebinding.example")


@pytest.mark.parametrize("answer", [(PUBLIC, INSIDE), (INSIDE, PUBLIC), ("::1", PUBLIC)])
async def test_a_name_with_one_address_that_isnt_public_is_refused(answer: tuple[str, ...]) -> None:
    with pytest.raises(ForbiddenTarget, match="no public address"):
        await targets(answer).resolve("mixed.example")


@pytest.mark.parametrize("host", [INSIDE, "::1", "169.254.169.254", "::ffff:10.0.0.1"])
async def test_addresses_of_an_address_are_itself_if_it_may_be_called(host: str) -> None:
    assert await targets().addresses(PUBLIC, 1) == [PUBLIC]
    with pytest.raises(ForbiddenTarget, match="no public address"):
        await targets().addresses(host, 1)


async def test_addresses_of_a_name_are_all_checked() -> None:
    fickle = targets((PUBLIC, "2600::1"), (PUBLIC, INSIDE))
    assert await fickle.addresses("two.example", 1) == [PUBLIC, "2600::1"]
    with pytest.raises(ForbiddenTarget, match="no public address"):
        await fickle.addresses("two.example", 1)
