"""What was read a moment ago is good for a while, and then read anew."""

from __future__ import annotations

from schedd.web.pages.recent import Recent


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_it_is_read_anew_when_it_is_no_longer_good() -> None:
    clock, read = Clock(), list[float]()
    recent = Recent(clock)

    async def reading() -> int:
        read.append(clock.now)
        return len(read)

    assert [await recent.of("a", 10.0, reading) for _ in range(3)] == [1, 1, 1]
    assert await recent.of("b", 10.0, reading) == 2
    clock.now += 10.5
    assert await recent.of("a", 10.0, reading) == 3
    assert read == [100.0, 100.0, 110.5]
