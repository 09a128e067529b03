"""Actors and sources in the audit log, with the token that was used."""

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
def test_a_token_in_a_request_name_isnt_the_token_of_the_member(source: str, token: str) -> None:
    assert token_of(source) == token


def test_an_actor_with_a_token_differs_from_a_person_of_that_name() -> None:
    assert actor_with_token("user/dev", "ipv4:127.0.0.1:4711") == "user/dev"
    assert (
        actor_with_token("user/dev", f"ipv4:127.0.0.1:4711 token:{ID}")
        == "user/dev (token 0b7a58b2)"
    )
