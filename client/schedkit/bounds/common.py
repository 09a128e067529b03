"""Rules that many tables share: ids, names, times, durations, counts, free text."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from schedkit.bounds.rules import INT32, INT64, Number, Octets, Span, Text, Time

FIRST_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME: Final = datetime(2200, 1, 1, tzinfo=UTC)
TIME: Final = Time(FIRST_TIME, END_OF_TIME)
MICROSECONDS: Final = (
    int(FIRST_TIME.timestamp()) * 1_000_000,
    int(END_OF_TIME.timestamp()) * 1_000_000 - 1,
)
"""The first and last time within `TIME`, in microseconds since 1970."""
"""Any time: given by a user, computed from a schedule, or read from a clock."""
LONGEST: Final = timedelta(days=3653)
"""Ten years. Adding it to any `TIME`, or subtracting it, gives a valid date."""
SPAN: Final = Span(-LONGEST, LONGEST)
"""A duration, also negative. The call checks its sign and size further."""
LENGTH: Final = Span(timedelta(0), LONGEST)
"""A duration that is never negative."""

ID: Final = Text(
    36,
    re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"),
    "an id (UUID)",
)
ID_BYTES: Final = Octets(16, 16)
ASKED_ID: Final = Text(1_000)
"""An id that a user gives. The call's own error names the expected kind and where to list it."""
NAME: Final = Text(1_000)
"""A name that a user gives. The call's own error says how names are spelled."""
WORD: Final = Text(255)
"""A name or version sent by a process of schedd."""
NOTE: Final = Text(4_000)
"""A note or reason of a user. The call's own error states the maximum length."""
SAID: Final = Text(4_096, nul=True)
"""An error or explanation sent by a worker."""
WORDS: Final = Text(1024 * 1024)
"""A part of a definition. The whole definition has its own limit."""

TOKEN: Final = Number(0, INT64 - (1 << 32))
"""A fencing token (`epoch << 32 | sequence`). The maximum leaves room for the next epoch."""
COUNT: Final = Number(0, INT32)
COUNT64: Final = Number(0, INT64)
SLOTS: Final = Number(0, 20_000)
SERIAL: Final = Number(0, INT64 - 1)
