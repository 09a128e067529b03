"""Messages made from their descriptors, by a seed: boundary values of every field.

    Fuzz(random.Random(seed), ids=[…]).message(pb.Result)

Most fields of a message are left out or hold a good value, so that what is wrong is one field, or a
few, and gets past the checks before it. `known`: values that the tested process knows (ids of runs,
tokens, names), so that messages meet what is there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.ids import Id

M = TypeVar("M", bound=Message)

INT64: Final = 1 << 63
NUMBERS: Final = (0, 1, -1, 2, 255, 256, 1_000, 20_000, 20_001, (1 << 31) - 1, -(1 << 31))
LARGE: Final = ((1 << 32) - 1, 1 << 32, (1 << 53) + 1, INT64 - (1 << 32), INT64 - 1, -INT64)
REALS: Final = (0.0, -0.0, 1.0, 0.5, -1.0, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
TEXTS: Final = (
    "", "x", "a/b", "\0", "x\0y", "\n", "ß€𝄞", "x" * 256, "x" * 5_000, "../..", "%s%n", "'; --",
    "00000000-0000-0000-0000-000000000000", "not-an-id", "0 0 30 2 *", "\u202e", "-1", "{}", "[",
)  # fmt: skip
SECONDS: Final = (
    0, -1, 946_684_799, 7_258_118_399, 7_258_118_400, 253_402_300_799, 253_402_300_800,
    -62_135_596_800, -62_135_596_801, INT64 - 1, -INT64,
)  # fmt: skip
LENGTHS: Final = (0, 1, -1, 60, 315_619_200, 315_619_201, INT64 - 1, -INT64)
NANOS: Final = (0, 1, -1, 999_999_999, 1_000_000_000, (1 << 31) - 1, -(1 << 31))
SIZES: Final = (0, 1, 2, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64, 65, 5_000)
DEEPEST: Final = 8

_RANGES: Final[Mapping[int, tuple[int, int]]] = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_INT64: (-INT64, INT64 - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_SFIXED64: (-INT64, INT64 - 1),
}


class Fuzz:
    """Makes messages."""

    def __init__(self, luck: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        self.luck = luck
        self.known = known
        """By the name of a field: values that the tested process knows."""
        self.wild = 0.15
        """How probable it is that a field holds a boundary value."""

    def message(self, cls: type[M]) -> M:
        """Return a random message of this class."""
        made = cls()
        self.fill(made, 0)
        return made

    def fill(self, message: Message, depth: int) -> None:
        """Set fields of it."""
        descriptor: Descriptor = message.DESCRIPTOR
        if isinstance(message, Timestamp | Duration):
            self._time(message)
            return
        for field in descriptor.fields:
            wanted = 0.7 if field.name in self.known or field.name == "key" else 0.3
            if self.luck.random() < wanted and depth < DEEPEST:
                self._set(message, field, depth)

    def _time(self, message: Timestamp | Duration) -> None:
        wild = self.luck.random() < 2 * self.wild
        if isinstance(message, Timestamp):
            near = int(time.time()) + self.luck.choice((0, 0, 0, -1, 5, -3_600, 86_400))
            message.seconds = self.luck.choice(SECONDS) if wild else near
        else:
            message.seconds = self.luck.choice(LENGTHS) if wild else self.luck.randrange(60)
        message.nanos = self.luck.choice(NANOS) if wild else 0

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        count = self.luck.choice((1, 1, 1, 2, 3, 20)) if field.is_repeated else 1
        of = field.message_type
        if of is not None and of.GetOptions().map_entry:
            self._pairs(getattr(message, field.name), of, count, depth)
        elif of is not None:
            for _ in range(count):
                inner = getattr(message, field.name)
                inner = inner.add() if field.is_repeated else inner
                inner.SetInParent()
                self.fill(inner, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend([self._value(field) for _ in range(count)])
        else:
            setattr(message, field.name, self._value(field))

    def _pairs(self, pairs: Any, of: Descriptor, count: int, depth: int) -> None:
        key, value = of.fields_by_name["key"], of.fields_by_name["value"]
        for _ in range(count):
            name = self._value(key)
            if value.message_type is None:
                pairs[name] = self._value(value)
            else:
                self.fill(pairs[name], depth + 1)

    def _value(self, field: FieldDescriptor) -> Any:
        luck, wild = self.luck, self.luck.random() < self.wild
        if not wild and (known := self.known.get(field.name)):
            return luck.choice(known)
        if field.enum_type is not None:
            numbers = [each.number for each in field.enum_type.values]
            return luck.choice([-1, 77, (1 << 31) - 1]) if wild else luck.choice(numbers)
        if (span := _RANGES.get(field.type)) is not None:
            low, high = span
            numbers = [n for n in (*NUMBERS, *LARGE) if low <= n <= high]
            return luck.choice(numbers) if wild else luck.randrange(4)
        plain: Mapping[int, Callable[[], Any]] = {
            FieldDescriptor.TYPE_BOOL: lambda: luck.random() < 0.5,
            FieldDescriptor.TYPE_DOUBLE: lambda: luck.choice(REALS) if wild else luck.random(),
            FieldDescriptor.TYPE_FLOAT: lambda: luck.choice(REALS) if wild else luck.random(),
            FieldDescriptor.TYPE_BYTES: lambda: luck.randbytes(luck.choice(SIZES)),
            FieldDescriptor.TYPE_STRING: lambda: luck.choice(TEXTS) if wild else self._text(),
        }
        return plain[field.type]()

    def _text(self) -> str:
        return self.luck.choice(
            ("a", "default", "w1", str(Id.from_int(self.luck.getrandbits(128))))
        )

    def columns(self, batch: Any) -> None:
        """Give the columns of a batch entries for the same runs, known or not. One column may have
        more, fewer or impossible entries.
        """
        count = self.luck.choice((1, 2, 50, 2_000))
        ids = [Id.parse(text) for text in self.known["run_id"]]
        batch.run_ids = b"".join(self.luck.choice(ids) for _ in range(count))
        now = int(time.time() * 1e6)
        batch.fencing_tokens[:] = self.luck.choices(self.known["fencing_token"], k=count)
        names = ("scheduled_at", "started_at", "finished_at")
        times = [getattr(batch, name) for name in names if name in batch.DESCRIPTOR.fields_by_name]
        for each in times:
            each[:] = [now] * count
        others = (batch.fencing_tokens, *times)
        if self.luck.random() < 0.2:
            batch.run_ids += b"x"
        if self.luck.random() < 0.3:
            self.luck.choice(others).append(self.luck.choice((0, 1, -1, *LARGE[:3], INT64 - 1)))
        if self.luck.random() < 0.3:
            self.luck.choice(others)[0] = self.luck.choice((0, -1, *LARGE[:3], INT64 - 1, -INT64))

    def held(self) -> bytes:
        """A part of `Held`: pieces of runs that are known or not, and perhaps half of one."""
        pieces = [
            Id.parse(self.luck.choice([*self.known["run_id"], str(Id.from_int(1))]))
            + self.luck.choice([*self.known["fencing_token"], *LARGE]).to_bytes(
                8, "big", signed=True
            )
            + self.luck.choice([*LARGE[:3], -INT64, INT64 - 1, 0]).to_bytes(8, "big", signed=True)
            for _ in range(self.luck.choice((1, 2, 50)))
        ]
        return b"".join(pieces)[: self.luck.choice((None, None, None, -1))]


def request_of(descriptor: Descriptor) -> type[Message]:
    """The class of a request."""
    return GetMessageClass(descriptor)
