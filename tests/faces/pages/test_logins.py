"""A page whose login ends while it is watched: in a real browser, before a cluster with TLS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from playwright.sync_api import Browser, expect

from faces.pages.browser import Watched, watched
from faces.pages.test_pages import wait_until_stable
from support.cluster import DevCluster, dev_cluster
from support.wait import WAIT_TIMEOUT, wait_until

SLOW = 20_000
"""Milliseconds for what takes a moment on a busy machine."""
LONGEST = 30_000 + SLOW
"""Milliseconds until a page has come back: it tries again each half a minute at the least."""


@pytest.fixture(scope="module")
def guarded(request: pytest.FixtureRequest) -> Iterator[DevCluster]:
    """A cluster that asks everybody who they are, and whose pages change all the time."""
    with dev_cluster(request.session, members=2, workers=1, tls=True) as made:
        job = "kind: job\nname: clock\nevery: 1s\nshell: {argv: ['true']}\n"
        assert made.schedctl("apply", "--yes", "-f", "-", stdin=job).returncode == 0
        yield made


@pytest.fixture
def inside(browser: Browser, guarded: DevCluster) -> Iterator[Watched]:
    """A page on /jobs, for who has logged in as an admin."""
    token = guarded.json("auth", "token", "create", "ann", "--role", "admin")["secret"]
    address = f"https://{guarded.record['members'][0]['http']}"
    with watched(browser, address) as web:
        web.page.clock.install()
        page = web.open("/jobs")
        page.get_by_label("Access token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/jobs")
        wait_until_stable(page)
        yield web


def log_out_elsewhere(web: Watched) -> None:
    """In another tab of the same browser."""
    other = web.page.context.new_page()
    other.goto(f"{web.address}/login")
    other.get_by_role("button", name="Log out").click()
    other.wait_for_url("**/login")
    other.close()
    web.page.bring_to_front()


def test_a_page_with_an_expired_login_says_so_and_sends_no_more_requests(inside: Watched) -> None:
    page = inside.page
    log_out_elsewhere(inside)
    expect(page.locator("#ended")).to_be_visible(timeout=SLOW)
    expect(page.locator("#live")).to_have_attribute("data-state", "still")
    asked = len(inside.requests)
    page.clock.fast_forward("10:00")
    page.evaluate("window.scrollTo(0, 0)")  # and whatever was asked is known
    assert inside.requests[asked:] == []
    page.locator("#ended").get_by_role("link", name="Log in").click()
    page.wait_for_url("**/login?next=*")
    assert page.url.endswith("/login?next=%2Fjobs")
    inside.allow("status of 401")


def test_an_idle_page_reports_an_expired_login_as_soon(inside: Watched) -> None:
    page = inside.open("/dead-letters")
    wait_until_stable(page)
    log_out_elsewhere(inside)
    expect(page.locator("#ended")).to_be_visible(timeout=SLOW)
    inside.allow("status of 401")


def test_a_click_after_the_login_expired_leads_to_the_login_and_back(
    inside: Watched, guarded: DevCluster
) -> None:
    page = inside.page
    log_out_elsewhere(inside)
    page.get_by_role("button", name="Trigger").click()
    expect(page.locator("#problem")).to_contain_text("log in")
    token = guarded.json("auth", "token", "create", "ann", "--role", "viewer")["secret"]
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/jobs")
    wait_until_stable(page)
    assert page.url == f"{inside.address}/jobs"
    expect(page.get_by_role("button", name="Trigger")).to_have_count(0)  # ann is a viewer now
    expect(page.locator(".flash")).to_contain_text("Nothing was changed yet")
    triggered = guarded.json("run", "list", "--trigger", "manual")
    assert triggered == [], "nothing was done without a login"
    inside.allow("status of 401")


def test_a_job_form_survives_a_login_after_an_expired_session(
    inside: Watched, guarded: DevCluster
) -> None:
    page = inside.open("/new-job")
    payload = '{\n  "of": "' + "x" * 10_000 + '"\n}'
    page.get_by_label("Name", exact=True).fill("outlives")
    page.get_by_label("Schedule").select_option("on_demand")
    page.get_by_label("Program and arguments").fill("echo '<b>&' \"two words\"")
    page.get_by_label("Payload").fill(payload)
    log_out_elsewhere(inside)
    page.get_by_role("button", name="Create job").click()
    token = guarded.json("auth", "token", "create", "ann", "--role", "admin")["secret"]
    for typed in ("schedd_mistyped", token):
        page.get_by_label("Access token").fill(typed)
        with page.expect_navigation():
            page.get_by_role("button", name="Log in").click()
    expect(page.locator(".flash")).to_contain_text("Nothing was changed yet")
    expect(page.get_by_label("Payload")).to_have_value(payload)
    assert guarded.schedctl("job", "get", "outlives").returncode == 3
    page.get_by_role("button", name="Create job").click()
    page.wait_for_url("**/jobs/outlives")
    made = guarded.json("job", "get", "outlives")
    assert made["shell"]["argv"] == ["echo", "<b>&", "two words"]
    assert made["payload"] == {"of": "x" * 10_000}
    assert not [one for one in inside.requests if "xxx" in one or "two" in one]
    inside.allow("status of 401")
    inside.allow("status of 403")


def test_a_page_reconnects_with_growing_delays_while_its_member_is_down(
    inside: Watched, guarded: DevCluster
) -> None:
    page = inside.page
    tried: list[float] = []
    page.on("request", lambda _: tried.append(time.monotonic()))
    guarded.kill("m1")
    wait_until(
        lambda: page.evaluate("true") and len(tried) >= 5,
        WAIT_TIMEOUT,
        "tries without an answer",
    )
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps[-1] > 2 * gaps[0], gaps
    assert page.locator("#live").get_attribute("data-state") == "reconnecting"
    guarded.up()
    expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=LONGEST)
    expect(page.locator("#ended")).to_be_hidden()
    inside.allow("net::")
