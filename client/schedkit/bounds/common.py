"""Rules that many tables share: ids, names, times, durations, counts, free text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from schedkit.bounds.rules import INT32, INT64, Number, Octets, Span, Text, Time

FIRST_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME: Final = datetime(2200, 1, 1, tzinfo=UTC)
TIME: Final = Time(FIRST_TIME, END_OF_TIME)
"""Every time: one that a user names, one of a schedule, a reading of a clock."""
LONGEST: Final = timedelta(days=3653)
"""Ten years: added to or taken from any `TIME` it gives a date."""
SPAN: Final = Span(-LONGEST, LONGEST)
"""A duration whose sign and size the call checks further."""
LENGTH: Final = Span(timedelta(0), LONGEST)
"""A duration that is never negative."""

ID: Final = Text(
    36,
    re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}"),
    "an id (UUID)",
)
ID_BYTES: Final = Octets(16, 16)
ASKED_ID: Final = Text(1_000)
"""An id that a user gives: the call says which kind of id it expects, and where they are listed."""
NAME: Final = Text(1_000)
"""A name that a user gives: the call says how names are spelled."""
WORD: Final = Text(255)
"""A name or version that a process of schedd gives."""
NOTE: Final = Text(4_000)
"""A note or reason of a user: the call says how long one may be."""
SAID: Final = Text(4_096, nul=True)
"""An error or explanation of a worker."""
WORDS: Final = Text(1024 * 1024)
"""A part of a definition: the definition as a whole has a limit of its own."""

TOKEN: Final = Number(0, INT64 - (1 << 32))
"""A fencing token (`epoch << 32 | sequence`): the next epoch exists, too."""
COUNT: Final = Number(0, INT32)
COUNT64: Final = Number(0, INT64)
SLOTS: Final = Number(0, 20_000)
SERIAL: Final = Number(0, INT64 - 1)
