"""Page tokens: what one is refused for."""

from __future__ import annotations

from uuid import uuid4

import pytest

from schedd.api import paging
from schedd.api.errors import InvalidArgument
from schedd.api.job_filtering import listing
from support.runs import NOW


def refused(token: str, of: str) -> str:
    with pytest.raises(InvalidArgument) as refusal:
        paging.read_token(of, token)
    assert refusal.value.reason == "BAD_PAGE_TOKEN"
    return refusal.value.message


@pytest.mark.parametrize(("given", "asked"), [("", "name:a"), ("name:a", ""), ("name:a", "name:b")])
def test_a_token_goes_with_the_filter_that_it_was_given_for(given: str, asked: str) -> None:
    token = paging.token(listing(given), NOW, uuid4())
    assert paging.read_token(listing(given), token) is not None
    assert "goes with the filter that it was given for" in refused(token, listing(asked))


def test_a_token_of_another_list_is_told_from_one_that_cannot_be_read() -> None:
    assert "is of another list" in refused(paging.token("runs", NOW, uuid4()), listing(""))
    for text in ("nonsense", paging.name_token("jobs", "x"), "W1tdLDEsMl0="):
        assert "isn't one of this cluster's" in refused(text, listing(""))
