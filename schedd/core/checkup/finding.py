"""One finding, and the three ways to make one."""

import enum

from schedkit.records import dataclass


class Severity(enum.Enum):
    """`BAD`: something doesn't work, or work may be lost. `WARN`: it may come to that."""

    OK = "OK"
    WARN = "WARN"
    BAD = "BAD"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found where. `why` and `remedy` are empty where all is well."""

    area: str
    check: str
    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """One check in an area, about a subject (a member, an endpoint, a table) or about all."""

    area: str
    check: str
    subject: str = ""

    def ok(self, what: str) -> Finding:
        """All is well."""
        return Finding(self.area, self.check, Severity.OK, what, subject=self.subject)

    def warn(self, what: str, why: str, remedy: str) -> Finding:
        """It may come to something."""
        return Finding(self.area, self.check, Severity.WARN, what, why, remedy, self.subject)

    def bad(self, what: str, why: str, remedy: str) -> Finding:
        """It has."""
        return Finding(self.area, self.check, Severity.BAD, what, why, remedy, self.subject)
