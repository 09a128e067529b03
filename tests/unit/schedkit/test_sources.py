"""Who did what, told apart by the token that it was done with."""

from __future__ import annotations

import pytest

from schedkit.sources import actor_with_token, token_of

ID = "0b7a58b2-5b8e-4f7c-8f0e-2f4d8a9c1e77"


@pytest.mark.parametrize(
    ("source", "token"),
    [
        ("", ""),
        ("ipv4:127.0.0.1:4711", ""),
        (f"ipv4:127.0.0.1:4711 token:{ID}", ID),
        (f"http:127.0.0.1:4711 token:{ID} request:nightly", ID),
        (f"ipv4:127.0.0.1:4711 request:nightly token:{ID}", ""),
        (f"ipv4:127.0.0.1:4711 request: token:{ID}", ""),
    ],
)
def test_a_token_is_what_the_member_wrote_and_not_what_a_request_is_called(
    source: str, token: str
) -> None:
    assert token_of(source) == token


def test_who_came_by_a_token_is_told_from_a_person_of_that_name() -> None:
    assert actor_with_token("user/dev", "ipv4:127.0.0.1:4711") == "user/dev"
    assert (
        actor_with_token("user/dev", f"ipv4:127.0.0.1:4711 token:{ID}")
        == "user/dev (token 0b7a58b2)"
    )
