"""What the tries of one call have come to: a refusal, or a change that may have been made.

Invariant: a change that one try may have made is told so (`DeadlineExceeded`), whatever later tries
came to.
"""

from __future__ import annotations

from typing import Final

from schedclient.errors import (
    BROKEN,
    CANCELLED,
    NO_ANSWER,
    ApiError,
    ClusterUnavailable,
    DeadlineExceeded,
)

NO_TIME: Final = "NO_TIME"
"""Why a try was never sent: there was no time for it."""
ON_ITS_WAY: Final = frozenset({BROKEN, CANCELLED})
"""Why no answer came of a member that may have begun on the call."""
UNANSWERED: Final = ON_ITS_WAY | {NO_ANSWER}
"""The same, or its time was over."""


class Tries:
    """What the tries of one call have come to, and what the call ends in by that."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self._last: ApiError | None = None
        self._refusal: ClusterUnavailable | None = None
        self._unclear: DeadlineExceeded | None = None

    def add(self, failure: ApiError) -> None:
        """One more has failed."""
        self._last = failure
        if failure.reason in ON_ITS_WAY:
            failure = _may_have_happened(failure)
        if isinstance(failure, ClusterUnavailable):
            self._refusal = failure
        elif isinstance(failure, DeadlineExceeded) and not (
            self._unclear and failure.reason in UNANSWERED  # a member's own words say more
        ):
            self._unclear = failure

    def outcome(self, end: ClusterUnavailable | DeadlineExceeded) -> ApiError:
        """The failure of the call whose tries came to this end, with the last refusal in it."""
        failure: ApiError = self._last if end.reason == NO_TIME and self._last else end
        if self._unclear is not None and not self._reads:
            failure = self._unclear
        refusal = self._refusal
        if isinstance(end, ClusterUnavailable) and end.reason not in ON_ITS_WAY:
            refusal = end
        if isinstance(failure, DeadlineExceeded) and refusal is not None:
            failure = failure.after(refusal)
        return with_remedy(failure, reads=self._reads)


def _may_have_happened(failure: ApiError) -> DeadlineExceeded:
    return DeadlineExceeded(
        failure.what,
        reason=failure.reason,
        remedy="see whether it was done; or call again, what has an idempotency key happens once",
        endpoint=failure.endpoint,
    )


def with_remedy(failure: ApiError, *, reads: bool) -> ApiError:
    """The failure, with what to do where only the call tells."""
    if isinstance(failure, DeadlineExceeded) and reads and not failure.remedy:
        failure.remedy = "nothing was changed: ask again, or give it more time"
    return failure
