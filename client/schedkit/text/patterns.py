"""Regular expressions that people give: matched in time linear in the text, whatever the pattern.

Python's own `re` backtracks, and holds the interpreter while it does: one pattern like `^(a+)+$`
stops a whole worker. RE2 has no back-references and no look-around; in exchange it can't stall.
"""

from __future__ import annotations

from typing import Any, Final

import re2

LONGEST: Final = 1000
"""Characters of a pattern."""

_QUIET: Final = re2.Options()
_QUIET.log_errors = False


class Pattern:
    """A pattern, ready to search in bytes (as UTF-8)."""

    def __init__(self, text: str) -> None:
        """Raises ValueError, saying what can't be read."""
        if len(text) > LONGEST:
            raise ValueError(f"has {len(text):,} characters, at most {LONGEST:,}")
        try:
            self._compiled: Any = re2.compile(text.encode(), _QUIET)
        except re2.error as wrong:
            raise ValueError(_reason(wrong)) from None

    def found_in(self, data: bytes) -> bool:
        """Whether it matches anywhere in the data."""
        return self._compiled.search(data) is not None


def _reason(wrong: Exception) -> str:
    said = wrong.args[0] if wrong.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
