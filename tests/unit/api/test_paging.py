"""Page tokens: what one is refused for."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from schedd.api import paging
from schedd.api.errors import InvalidArgumentError
from schedproto.v1.job_service_pb2 import ListJobsRequest
from schedproto.v1.run_service_pb2 import ListRunsRequest
from support.runs import NOW


def refused(token: str, of: str) -> str:
    with pytest.raises(InvalidArgumentError) as refusal:
        paging.read_token(of, token)
    assert refusal.value.reason == "BAD_PAGE_TOKEN"
    return refusal.value.message


def listing(text: str) -> str:
    return paging.listing("jobs", ListJobsRequest(filter=text))


@pytest.mark.parametrize(("given", "asked"), [("", "name:a"), ("name:a", ""), ("name:a", "name:b")])
def test_a_token_goes_with_the_filter_that_it_was_given_for(given: str, asked: str) -> None:
    token = paging.token(listing(given), NOW, uuid4())
    assert paging.read_token(listing(given), token) is not None
    assert "was issued for another filter" in refused(token, listing(asked))


def test_how_large_its_pages_are_is_no_part_of_what_a_list_is_asked_by() -> None:
    asked = ListRunsRequest(job="etl")
    listed = paging.listing("runs", asked)
    sized = ListRunsRequest(job="etl", page_size=7, page_token="x")
    assert paging.listing("runs", sized) == listed
    others = [ListRunsRequest(), ListRunsRequest(job="h1"), ListRunsRequest(worker="etl")]
    assert len({listed, *(paging.listing("runs", one) for one in others)}) == 4


def test_how_far_a_page_has_come_is_read_whatever_was_asked() -> None:
    assert paging.reached(paging.token(listing("name:a"), NOW, uuid4())) == NOW
    assert paging.reached("") is None


def test_a_token_of_another_list_is_told_from_one_that_cannot_be_read() -> None:
    assert "was issued for another list" in refused(paging.token("runs", NOW, uuid4()), listing(""))
    for text in ("nonsense", paging.name_token("jobs", "x"), "W1tdLDEsMl0="):
        assert "is invalid" in refused(text, listing(""))


def crafted(*parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"])
def test_an_instant_that_is_none_in_utc_is_no_place_in_a_list(at: str) -> None:
    assert "is invalid" in refused(crafted("runs", at, str(uuid4())), "runs")


def test_an_instant_of_another_offset_is_read_in_utc() -> None:
    row = uuid4()
    for at in ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00"):
        read = paging.read_token("runs", crafted("runs", at, str(row)))
        assert read == (datetime(2026, 1, 1, tzinfo=UTC), row)
        assert read[0].tzinfo is UTC


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 7, None])
def test_what_can_be_no_name_is_no_place_in_a_list(name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="is invalid"):
        paging.read_name_token("pools", crafted("pools", name))
