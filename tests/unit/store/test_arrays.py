"""Array literals say exactly what the values are."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from schedd.core.ids import Id
from schedd.store.statements import arrays
from support.repository import ROOT


def test_no_statement_uses_copy() -> None:
    """P1.5: nothing ends a process that stops in the middle of a COPY while it holds locks."""
    for file in (ROOT / "schedd" / "store").rglob("*.py"):
        assert not re.search(r"\bCOPY\b|copy_(from|expert|to)", file.read_text("utf-8")), file


def test_ids_are_their_hex_digits() -> None:
    low = Id.from_int(1)
    assert arrays.ids([low, None]) == "{00000000000000000000000000000001,NULL}"


def test_numbers_flags_and_null_are_array_literals() -> None:
    assert arrays.numbers([1, None, -5, 0.25]) == "{1,NULL,-5,0.25}"
    assert arrays.flags([True, False]) == "{t,f}"
    assert arrays.numbers([]) == "{}"


def test_spots_are_quoted_for_their_comma() -> None:
    assert arrays.spots(["(0,1)", None]) == '{"(0,1)",NULL}'


def test_instants_carry_their_offset() -> None:
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    kathmandu = noon.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert arrays.instants([noon, None]) == "{2026-01-05T12:00:00+00:00,NULL}"
    assert arrays.instants([kathmandu]) == "{2026-01-05T17:45:00+05:45}"
    assert arrays.instants([noon, kathmandu]).count("2026-01-05T12:00") == 2, "they are the same"


@pytest.mark.parametrize(
    ("text", "literal"),
    [
        ("plain", '{"plain"}'),
        ("", '{""}'),
        ("NULL", '{"NULL"}'),
        ('a "quoted", one', '{"a \\"quoted\\", one"}'),
        ("back\\slash", '{"back\\\\slash"}'),
        ("{braces}", '{"{braces}"}'),
    ],
)
def test_texts_are_quoted(text: str, literal: str) -> None:
    assert arrays.texts([text]) == literal


def test_characters_that_text_cant_hold_are_replaced() -> None:
    assert arrays.clean("a\0b") == "a␀b"
    assert arrays.clean("half\ud800pair") == "half?pair"
    assert arrays.clean("zażółć 🙂") == "zażółć 🙂"


def test_blobs_are_hexadecimal() -> None:
    assert arrays.blobs([b"\x00\xff", b"", None]) == '{"\\\\x00ff","\\\\x",NULL}'
