"""Findings of the doctor, and their three severities."""

import enum

from schedkit.records import dataclass


class Severity(enum.Enum):
    """`BAD`: something doesn't work, or work may be lost. `WARN`: this may happen soon."""

    OK = "OK"
    WARN = "WARN"
    BAD = "BAD"


@dataclass(frozen=True, slots=True)
class CheckupFinding:
    """A finding of a check. `why` and `remedy` are empty if the severity is `OK`."""

    area: str
    check: str
    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""
    subject: str = ""


@dataclass(frozen=True, slots=True)
class CheckSubject:
    """A check in an area, of one subject (a member, an endpoint, a table) or of the whole area.

    `healthy`: the finding's text if all is well, for `warn_if` and `bad_if`.
    """

    area: str
    check: str
    subject: str = ""
    healthy: str = ""

    def ok(self, what: str) -> CheckupFinding:
        return CheckupFinding(self.area, self.check, Severity.OK, what, subject=self.subject)

    def warn(self, what: str, why: str, remedy: str) -> CheckupFinding:
        return CheckupFinding(self.area, self.check, Severity.WARN, what, why, remedy, self.subject)

    def bad(self, what: str, why: str, remedy: str) -> CheckupFinding:
        return CheckupFinding(self.area, self.check, Severity.BAD, what, why, remedy, self.subject)

    def warn_if(self, problem: object, what: str, why: str, remedy: str) -> CheckupFinding:
        return self.warn(what, why, remedy) if problem else self.ok(self.healthy)

    def bad_if(self, problem: object, what: str, why: str, remedy: str) -> CheckupFinding:
        return self.bad(what, why, remedy) if problem else self.ok(self.healthy)
