"""Sign requests by Standard Webhooks, so that a receiver can verify sender and content.

    webhook-id          the run id: equal for all attempts, so a receiver recognizes repetitions
    webhook-timestamp   seconds since 1970, when this request was sent
    webhook-signature   v1,base64(HMAC-SHA256(key, id.timestamp.body)), one for each key

Source: the specification of Standard Webhooks, version 1.
"""

import base64
import hmac
from collections.abc import Sequence


def signature(keys: Sequence[bytes], identity: str, at: int, body: bytes) -> dict[str, str]:
    """Return the three headers. `at`: seconds since 1970."""
    content = b"%s.%d.%s" % (identity.encode(), at, body)
    signed = (base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys)
    return {
        "webhook-id": identity,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signed),
    }
