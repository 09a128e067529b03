"""Sizes, as they are written."""

from __future__ import annotations

import pytest

from schedctl.options.job_options import parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), (" 1 GiB ", 1 << 30), ("0", 0), ("512", 512)]
)
def test_a_size_has_a_unit_of_1024_or_is_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64MB", "64M", "1.5GiB", "-1", "MiB", "64mib", "٣"])
def test_an_ambiguous_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 64MiB"):
        parse_size(text)
