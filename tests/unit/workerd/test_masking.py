"""Secrets in output are masked for any split of the stream."""

from hypothesis import given
from hypothesis import strategies as st

from workerd.core.capture import LEAST, MASK, Mask

few = st.sampled_from([bytes([byte]) for byte in b"ab"])
texts = st.lists(few, max_size=60).map(b"".join)
secrets = st.lists(st.lists(few, min_size=LEAST, max_size=9).map(b"".join), max_size=3)


def shown(secrets: list[bytes], pieces: list[bytes]) -> bytes:
    mask = Mask(secrets)
    return b"".join([*map(mask.feed, pieces), mask.end()])


def as_defined(secrets: list[bytes], data: bytes) -> bytes:
    """Mask byte by byte: each group of overlapping secrets is one mask."""
    found = sorted(
        (start, start + len(secret))
        for secret in secrets
        for start in range(len(data))
        if data.startswith(secret, start)
    )
    out, at = b"", 0
    for start, stop in found:
        if start >= at:
            out += data[at:start] + MASK
        at = max(at, stop)
    return out + data[at:]


@given(secrets, st.lists(texts, max_size=6))
def test_a_secret_is_masked_for_any_split_of_the_stream(
    secrets: list[bytes], cut: list[bytes]
) -> None:
    assert shown(secrets, cut) == as_defined(secrets, b"".join(cut))


def test_a_possible_beginning_of_a_secret_is_withheld_until_it_is_known() -> None:
    mask = Mask([b"hunter42"])
    assert mask.feed(b"it is hunt") == b"it is "
    assert mask.feed(b"er42, or ") == b"***, or "
    assert mask.feed(b"hunting") == b"hunting"
    assert mask.feed(b"hunter4") == b""
    assert mask.end() == b"hunter4"


def test_short_secrets_are_shown_and_nothing_is_withheld_without_secrets() -> None:
    assert Mask([b"true", b""]).feed(b"true") == b"true"
    assert Mask().feed(b"abc") == b"abc"
