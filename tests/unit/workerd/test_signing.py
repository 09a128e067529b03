"""Standard Webhooks: signatures as its own documentation has them, and keys as it writes them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from schedkit.egress.secrets import keys, signature

PUBLISHED = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"x" * 32).decode()


def test_the_published_example_is_signed_as_published(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{PUBLISHED}\n")
    key = keys(str(tmp_path / "key"), [tmp_path])
    body = b'{"test": 2432232314}'
    assert signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_a_receiver_rotates_keys_both_sign(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"# the new one\n{OTHER}\n\n{PUBLISHED}\n")
    both = keys(str(tmp_path / "key"), [tmp_path])
    signed = signature(both, "run", 1, b"")["webhook-signature"].split(" ")
    alone = [signature([one], "run", 1, b"")["webhook-signature"] for one in both]
    assert signed == alone
    assert len({*signed}) == 2


@pytest.mark.parametrize(
    "text", ["", "# none\n", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_!", PUBLISHED + "\nx\n"]
)
def test_an_invalid_key_is_rejected_and_not_repeated(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(ValueError, match="signing_key: ") as refused:
        keys(str(tmp_path / "key"), [tmp_path])
    assert "MfKQ" not in str(refused.value)
    assert "secret" not in str(refused.value).replace(str(tmp_path), "")
