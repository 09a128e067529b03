"""Page tokens, and the reasons to refuse one."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from schedd.api import paging
from schedd.api.errors import InvalidArgumentError
from schedd.core.ids import Id, new_id
from schedproto.v1.job_service_pb2 import ListJobsRequest
from schedproto.v1.run_service_pb2 import ListRunsRequest
from support.runs import NOW


def refused(token: str, of: str) -> str:
    with pytest.raises(InvalidArgumentError) as refusal:
        paging.read_token(of, token, paging.time_and(Id))
    assert refusal.value.reason == "BAD_PAGE_TOKEN"
    return refusal.value.message


def listing(text: str) -> str:
    return paging.listing("jobs", ListJobsRequest(filter=text))


@pytest.mark.parametrize(("given", "asked"), [("", "name:a"), ("name:a", ""), ("name:a", "name:b")])
def test_a_page_token_is_valid_only_with_its_filter(given: str, asked: str) -> None:
    token = paging.token(listing(given), NOW, new_id())
    assert paging.read_token(listing(given), token, paging.time_and(Id)) is not None
    assert "was issued for a list with another filter" in refused(token, listing(asked))


def test_a_page_token_does_not_depend_on_the_page_size() -> None:
    asked = ListRunsRequest(job="etl")
    listed = paging.listing("runs", asked)
    sized = ListRunsRequest(job="etl", page_size=7, page_token="x")
    assert paging.listing("runs", sized) == listed
    others = [ListRunsRequest(), ListRunsRequest(job="h1"), ListRunsRequest(worker="etl")]
    assert len({listed, *(paging.listing("runs", one) for one in others)}) == 4


def test_the_position_of_a_page_token_is_read_for_any_filter() -> None:
    assert paging.reached(paging.token(listing("name:a"), NOW, new_id())) == NOW
    assert paging.reached("") is None


def test_a_token_of_another_list_and_an_unreadable_one_have_different_errors() -> None:
    assert "was issued for another list" in refused(
        paging.token("runs", NOW, new_id()), listing("")
    )
    for text in ("nonsense", paging.token("jobs", "x"), "W1tdLDEsMl0="):
        assert "is invalid" in refused(text, listing(""))


def crafted(*parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"])
def test_an_instant_out_of_range_in_utc_is_not_a_list_position(at: str) -> None:
    assert "is invalid" in refused(crafted("runs", at, str(uuid4())), "runs")


def test_an_instant_of_another_offset_is_read_in_utc() -> None:
    row = new_id()
    for at in ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00"):
        read = paging.read_token("runs", crafted("runs", at, str(row)), paging.time_and(Id))
        assert read == (datetime(2026, 1, 1, tzinfo=UTC), row)
        assert read[0].tzinfo is UTC


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 7, None])
def test_an_invalid_name_is_not_a_list_position(name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="is invalid"):
        paging.read_token("pools", crafted("pools", name), paging.name_of)
