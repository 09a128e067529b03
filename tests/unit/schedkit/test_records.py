"""Records: dataclasses for their users, created in a fraction of the time."""

from __future__ import annotations

import dataclasses
import pickle
import timeit
from dataclasses import field

import pytest

from schedkit.records import dataclass, immutable_dataclass, replace


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    attempt: int = 0
    marks: tuple[str, ...] = ()
    read_at: float = field(default=0.0, compare=False)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.name))


@dataclass
class Open:
    name: str


@dataclass(frozen=True, slots=True, order=True)
class Place:
    rank: int


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    name: str
    labels: dict[str, str] = field(default_factory=dict)
    message: str = field(default="", repr=False, compare=False)


@immutable_dataclass(frozen=True, slots=True, kw_only=True)
class Derived(Value):
    size: int = 1


def test_records_are_equal_hashed_ordered_and_shown_as_dataclasses_are() -> None:
    one, other = Run("a", read_at=1.0), Run("a", read_at=2.0)
    assert one == other
    assert len({one, other, Run("a", 1)}) == 2
    assert Place(1) < Place(2)
    assert repr(Place(1)) == "Place(rank=1)"
    assert [each.name for each in dataclasses.fields(Run)][:2] == ["name", "attempt"]
    assert not hasattr(one, "__dict__")


def test_a_changed_copy_differs_in_the_named_fields() -> None:
    run = Run("a", 1, ("x",), 3.0)
    copy = replace(run, name="bcd", attempt=2)
    assert (copy.name, copy.attempt, copy.marks, copy.read_at, copy.length) == (
        "bcd",
        2,
        ("x",),
        3.0,
        3,
    )
    assert (run.name, run.attempt) == ("a", 1)
    assert replace(Place(1), rank=2) == Place(2)
    assert dataclasses.replace(run, attempt=2) == replace(run, attempt=2)
    with pytest.raises(KeyError, match="attemt"):
        replace(run, attemt=2)  # type: ignore[call-arg]  # the misspelling is tested


def test_a_record_takes_the_arguments_of_a_dataclass() -> None:
    assert Run(name="a", marks=("x",)) == Run("a", 0, ("x",))
    assert Run("a") != Place(1)
    assert repr(Run("a")) == "Run(name='a', attempt=0, marks=(), read_at=0.0, length=1)"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Run()  # type: ignore[call-arg]  # the missing argument is tested
    with pytest.raises(TypeError, match="length"):
        Run("a", length=1)  # type: ignore[call-arg]  # a field that isn't an argument


def test_a_method_that_a_record_defines_is_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Same:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Same)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "same"

    assert Same("a") == Same("b")
    assert hash(Same("a")) == 7
    assert repr(Same("a")) == "same"


def test_an_immutable_value_is_a_frozen_dataclass() -> None:
    one, other = Derived(name="a", message="x"), Derived(name="a", message="y")
    assert one == other
    assert repr(one) == "Derived(name='a', labels={}, size=1)"
    assert one.labels is not other.labels
    assert dataclasses.replace(one, size=2) == replace(one, size=2) == Derived(name="a", size=2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'size'"):
        one.size = 3  # type: ignore[misc]  # the change is tested
    with pytest.raises(dataclasses.FrozenInstanceError):
        del one.name
    with pytest.raises(TypeError, match="positional"):
        Value("a")  # type: ignore[call-arg, misc]  # the position is tested
    copy = pickle.loads(pickle.dumps(one))
    assert (copy, copy.message) == (one, "x")


def test_a_class_that_isnt_frozen_is_a_standard_dataclass() -> None:
    one = Open("a")
    one.name = "b"
    assert replace(one, name="c") == Open("c")
    assert one == Open("b")


@pytest.mark.slow
def test_a_record_of_many_fields_is_made_in_less_than_half_of_the_time() -> None:
    fields = [(f"field_{number}", int, 0) for number in range(26)]
    standard = dataclasses.make_dataclass("Standard", fields, frozen=True, slots=True)
    body = {"__annotations__": {name: kind for name, kind, _ in fields}}
    ours: type = dataclass(frozen=True, slots=True)(
        type("Ours", (), {**body, **{name: default for name, _, default in fields}})
    )

    def seconds(make: object) -> float:
        return min(timeit.repeat(make, number=2_000, repeat=7))  # type: ignore[arg-type]  # a call

    values = range(26)
    assert seconds(lambda: ours(*values)) < seconds(lambda: standard(*values)) / 2
    ready, other = ours(*values), standard(*values)
    assert seconds(lambda: replace(ready, field_3=7)) < (
        seconds(lambda: dataclasses.replace(other, field_3=7)) / 2
    )
