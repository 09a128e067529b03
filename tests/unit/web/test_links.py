"""Where addresses lead: to pages of this site, never to what is POST alone."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from schedd.web import links


async def shown(_: Request) -> Response:
    return Response()


ROUTES = [
    Route("/", shown),
    Route("/jobs", shown),
    Route("/jobs/{job}", shown),
    Route("/jobs/{job}/trigger", shown, methods=["POST"]),
    Route("/workers", shown),
    Route("/workers/{worker}/drain", shown, methods=["POST"]),
    Route("/redrives/{redrive}/stop", shown, methods=["POST"]),
    Route("/login", shown),
    Route("/login", shown, methods=["POST"]),
]


def referred(referer: str) -> str:
    headers = [(b"host", b"m1:7421"), (b"referer", referer.encode())]
    return links.referred({"type": "http", "headers": headers}, default="/default")


@pytest.mark.parametrize(
    "address", ["https://evil.example/", "//evil.example", "/\\evil.example", "", "/a\r\nb", "jobs"]
)
def test_an_address_of_another_site_is_replaced_by_the_root(address: str) -> None:
    assert links.local(address) == "/"
    assert links.page_of(ROUTES, address) == "/"


def test_an_address_of_this_site_leads_there() -> None:
    assert links.local("/jobs?filter=paused:true") == "/jobs?filter=paused:true"


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("/jobs/etl/trigger", "/jobs/etl"),
        ("/jobs/etl/trigger?namespace=a", "/jobs/etl?namespace=a"),
        ("/workers/w1/drain", "/workers"),
        ("/redrives/r1/stop", "/"),
        ("/jobs/etl?namespace=a", "/jobs/etl?namespace=a"),
        ("/login", "/login"),
        ("/nowhere", "/nowhere"),
    ],
)
def test_the_path_of_an_action_leads_to_the_page_above_it(address: str, page: str) -> None:
    assert links.page_of(ROUTES, address) == page


def test_a_path_has_the_methods_of_all_its_routes() -> None:
    assert links.methods(ROUTES, "/login") == {"GET", "HEAD", "POST"}
    assert links.methods(ROUTES, "/nowhere") == set()


@pytest.mark.parametrize(
    ("referer", "page"),
    [
        ("https://m1:7421/jobs?filter=a", "/jobs?filter=a"),
        ("https://evil.example/jobs", "/default"),
        ("https://[/jobs", "/default"),
        ("", "/default"),
    ],
)
def test_a_form_was_on_the_page_that_the_browser_names(referer: str, page: str) -> None:
    assert referred(referer) == page
