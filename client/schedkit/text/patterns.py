"""Regular expressions from users, matched in time linear in the text for any pattern.

Python's own `re` backtracks while it holds the GIL: one pattern such as `^(a+)+$` stops a whole
worker. RE2 never backtracks; it has no back-references and no look-around.
"""

from typing import Any, Final

import re2

LONGEST: Final = 1000
"""Characters of a pattern."""

_QUIET: Final = re2.Options()
_QUIET.log_errors = False


class Pattern:
    """A compiled pattern, to search in bytes (as UTF-8)."""

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raises ValueError with its problem."""
        if len(text) > LONGEST:
            raise ValueError(
                f"the pattern has {len(text):,} characters, but at most {LONGEST:,} are"
                " allowed: shorten it"
            )
        try:
            self._compiled: Any = re2.compile(text.encode(), _QUIET)
        except re2.error as wrong:
            said = wrong.args[0] if wrong.args else ""
            reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            raise ValueError(reason) from None

    def found_in(self, data: bytes) -> bool:
        return self._compiled.search(data) is not None
