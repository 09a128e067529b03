"""Problems of a form that a person wrote, each with its place."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from schedkit.errors import ScheddError
from schedkit.records import dataclass

Path: TypeAlias = tuple[str | int, ...]
"""Keys and list positions from the root, as they were written."""

IN_THE_PAST: Final = "is in the past"
"""The problem of a time that must be in the future. `schedctl apply` ignores a pause with it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its path, its description, and a suggestion (may be empty)."""

    path: Path
    message: str
    suggestion: str = ""

    @property
    def where(self) -> str:
        """The path as text: `retry.max_attempts`, `cron[1]`; empty at the root."""
        text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return text.removeprefix(".")

    @property
    def what(self) -> str:
        """The description with the suggestion, without the path."""
        return f"{self.message} ({self.suggestion})" if self.suggestion else self.message

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.path else self.what


class FormErrors(ScheddError, ValueError):
    """A form can't be read as its message. `problems` has all problems, at least one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class InvalidText(ValueError):
    """A value can't be read. The message is for its author; the caller adds the path."""


LONGEST_WORD: Final = 64
"""Characters of a word that is compared with known words; comparing longer ones takes long."""


def did_you_mean(word: str, known: Iterable[str], begin: str = "") -> str:
    """Return `did you mean "cron"?`, or an empty text if no known word is similar. A common
    beginning (`begin`) doesn't count as similarity.
    """
    if len(word) > LONGEST_WORD:
        return ""
    by_folded = {one.lower().removeprefix(begin): one for one in known}
    folded = word.lower().removeprefix(begin)
    near = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return f'did you mean "{by_folded[near[0]]}"?' if near else ""
