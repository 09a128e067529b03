"""Ids have the texts, the order and the derived values of `uuid.UUID`."""

from __future__ import annotations

from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedd.core.ids import Id, derived_id, new_id

uuids = st.uuids()


@given(uuids, uuids)
def test_an_id_is_written_read_and_ordered_as_the_uuid_with_its_bytes(one: UUID, two: UUID) -> None:
    first, second = Id(one.bytes), Id(two.bytes)
    assert (str(first), f"{first}", first.number) == (str(one), str(one), one.int)
    assert Id.parse(str(one)) == Id.parse(one.urn) == Id.from_int(one.int) == first
    assert (first < second, first == second) == (one < two, one == two)
    assert {first: 1}[Id.parse(str(one))] == 1


@given(uuids, st.text(st.characters(codec="utf-8")))
def test_a_derived_id_is_the_uuid_of_version_5(space: UUID, name: str) -> None:
    assert str(derived_id(Id(space.bytes), name)) == str(uuid5(space, name))


def test_new_ids_are_random_uuids_of_version_4() -> None:
    made = {new_id() for _ in range(100)}
    assert len(made) == 100
    assert {UUID(bytes=bytes(one)).version for one in made} == {4}


@pytest.mark.parametrize("value", [b"", b"x" * 15, b"x" * 17])
def test_a_value_without_16_bytes_is_rejected(value: bytes) -> None:
    with pytest.raises(ValueError, match="instead of 16"):
        Id(value)


@pytest.mark.parametrize("text", ["", "nonsense", "0" * 31, "g" * 32])
def test_a_text_that_names_no_uuid_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"hexadecimal|base 16"):
        Id.parse(text)
