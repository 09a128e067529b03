"""Requests signed by Standard Webhooks, so that a receiver knows who sent them, and what.

    webhook-id          the run: the same for each attempt, so that a receiver knows a second one
    webhook-timestamp   seconds since 1970, of this sending
    webhook-signature   v1,base64(HMAC-SHA256(key, id.timestamp.body)), one for each key

Source: the specification of Standard Webhooks, version 1.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence


def signature(keys: Sequence[bytes], identity: str, at: int, body: bytes) -> dict[str, str]:
    """The three headers. `at`: seconds since 1970."""
    content = b"%s.%d.%s" % (identity.encode(), at, body)
    signed = (base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys)
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signed),
    }
