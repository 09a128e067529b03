"""Conditions of a job on its worker's labels: `gpu=a100`, `region in (eu, us)`."""

from collections.abc import Iterable, Mapping

from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """A condition: the label `key` has one of the values `any_of`."""

    key: str
    any_of: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.any_of) == 1:
            return f"{self.key}={self.any_of[0]}"
        return f"{self.key} in ({', '.join(self.any_of)})"

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Return whether a worker with these labels meets the condition."""
        return labels.get(self.key) in self.any_of


def matches_text(matches: Iterable[Match]) -> str:
    return " and ".join(str(match) for match in matches)
