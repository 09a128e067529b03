"""The digest of an attempt's outcome: it tells a repeated result from a contradictory one.

Invariant: the same outcome has the same digest in every process and version. The encoding is fixed
here.
"""

import hashlib
from typing import Final

SUCCEEDED: Final = 1
"""The verdict of a successful attempt, as in `Result.Outcome`."""


def outcome_digest(
    run_id: str,
    token: int,
    verdict: int = SUCCEEDED,
    *,
    reason: int = 0,
    exit_code: int | None = None,
    error: bytes = b"",
    result: bytes = b"",
) -> bytes:
    """Return the SHA-256 of an outcome, 32 bytes. By default: of a success without a returned
    value, output, error or exit code, which a `ResultBatch` reports.

    Args:
        run_id: the id as text.
        token: the fencing token.
        verdict: as in `Result.Outcome`.
        reason: as in `Reason`.
        exit_code: of a program; None for none.
        error: in UTF-8.
        result: `j` and JSON text, or `r` and bytes; empty for none.
    """
    fields = (
        run_id.encode(),
        str(token).encode(),
        str(verdict).encode(),
        str(reason).encode(),
        b"" if exit_code is None else str(exit_code).encode(),
        error,
        result,
    )
    encoded = [part for each in fields for part in (len(each).to_bytes(8, "big"), each)]
    return hashlib.sha256(b"".join(encoded)).digest()
