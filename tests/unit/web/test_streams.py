"""Events as they go over the wire."""

from __future__ import annotations

from schedd.web.streams import Event


def test_an_event_is_its_fields_a_line_each_and_an_empty_line() -> None:
    assert Event("x", name="end", id="7").encoded() == b"id: 7\nevent: end\ndata: x\n\n"


def test_text_of_many_lines_stays_one_event() -> None:
    assert Event("a\nb\r\nc").encoded() == b"data: a\ndata: b\ndata: c\n\n"


def test_an_event_without_text_is_still_one() -> None:
    assert Event("").encoded() == b"data: \n\n"
