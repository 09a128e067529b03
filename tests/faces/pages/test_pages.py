"""Every page, on a desk and on a phone, in light and in dark: whole, fit to be read, and quiet."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from faces.pages.browser import DESKTOP, PHONE, Watched, watched
from faces.pages.jobs import LONG
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

ADDRESSES: dict[str, Callable[[DevCluster], str]] = {
    "overview": lambda _: "/",
    "jobs": lambda _: "/jobs",
    "job": lambda _: "/jobs/archive",
    "new-job": lambda _: "/new-job",
    "runs": lambda _: "/runs",
    "run": lambda cluster: f"/runs/{dead_run(cluster)}",
    "workers": lambda _: "/workers",
    "cluster": lambda _: "/cluster",
    "doctor": lambda _: "/cluster/doctor",
    "dead-letters": lambda _: "/dead-letters",
    "cron": lambda _: "/cron",
    "forecast": lambda _: "/forecast",
}
"""Name of a page → where it is."""

HARD: dict[str, Callable[[DevCluster], str]] = {
    "job of a long name": lambda _: f"/jobs/{LONG}",
    "run of a long name": lambda cluster: f"/runs/{dead_run(cluster, LONG)}",
    "dead letters of a long name": lambda cluster: dead_kind(cluster, LONG),
    "runs of a long name": lambda _: f"/runs?q=job:{LONG}",
    "runs that wait": lambda _: "/runs?q=state:pending",
    "a run that waits": lambda cluster: f"/runs/{waiting_run(cluster)}",
}
"""Views that are harder to show; there are no pictures of them."""

STILL = {"new-job", "doctor", "cron", "run"}
"""Pages that don't live: the run's has ended."""

MOVING = ("overview", "jobs", "runs")
"""Pages that a job of each second changes all the time."""

COUNTING = """
window.changes = 0;
new MutationObserver((seen) => (window.changes += seen.length))
  .observe(document.getElementById("body"), {subtree: true, childList: true, characterData: true});
"""

SIGHTS: dict[str, tuple[ViewportSize, bool]] = {
    "desktop-light": (DESKTOP, False),
    "desktop-dark": (DESKTOP, True),
    "phone-light": (PHONE, False),
    "phone-dark": (PHONE, True),
}
"""Name of a look at a page → its size, and whether it is dark."""


def dead_run(cluster: DevCluster, job: str = "broken-import") -> str:
    """A run that failed for good."""

    def failed() -> list[dict[str, str]]:
        found = cluster.json("run", "list", "--job", job, "--state", "failed", "--limit", "1")
        return list(found)

    return wait_until(failed, WAIT_TIMEOUT, f"a dead run of {job}")[0]["runId"]


def waiting_run(cluster: DevCluster) -> str:
    """Return a run that waits for a kind of worker that doesn't exist."""
    found = cluster.json("run", "list", "--job", "picky", "--state", "pending", "--limit", "1")
    return str((found or [cluster.json("job", "trigger", "picky")])[0]["runId"])


def dead_kind(cluster: DevCluster, job: str) -> str:
    """The page of one kind of error of a job."""
    dead_run(cluster, job)
    [group] = [one for one in cluster.json("dlq", "groups") if one["job"] == job]
    return f"/dead-letters?job={job}&fingerprint={group['fingerprint']}"


def wait_until_stable(page: Page) -> None:
    """Wait until a page is live, if it lives."""
    if page.locator("[data-live]").count():
        expect(page.locator("#live")).to_have_attribute("data-state", "live", timeout=20_000)


@pytest.mark.parametrize("name", ADDRESSES | HARD)
def test_each_page_is_complete_and_accessible(
    browser: Browser, cluster: DevCluster, address: str, name: str
) -> None:
    path = (ADDRESSES | HARD)[name](cluster)
    for size, dark in (SIGHTS["desktop-light"], SIGHTS["phone-dark"]):
        with watched(browser, address, size=size, dark=dark) as web:
            page = web.open(path)
            wait_until_stable(page)
            assert page.locator("h1").count() >= 1
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= size["width"], f"{name} is {width} wide on {size['width']}"
            assert not (found := web.serious()), f"{name}, dark: {dark}\n" + "\n".join(found)


SMALL: ViewportSize = {"width": 320, "height": 640}

CUT = """
[...document.querySelectorAll("main .card, main .tile, main .tiles, header, footer")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => `${each.tagName} ${each.id} ${each.className}: ${each.scrollWidth}`)
"""
"""Elements that are wider than their place."""

CUT_CELLS = """
[...document.querySelectorAll("table.runs :is(th, td)")]
  .filter((each) => !each.matches("td.job") && each.scrollWidth > each.clientWidth)
  .map((each) => `${each.textContent.trim()}: ${each.scrollWidth} in ${each.clientWidth}`)
"""
"""Cells of runs that are cut, but for names of jobs: those are as long as they like."""


@pytest.mark.parametrize("wide", [SMALL["width"], 640, 720])
def test_no_page_overflows_or_is_cut_on_the_smallest_phone_or_at_twice_the_size(
    browser: Browser, cluster: DevCluster, address: str, wide: int
) -> None:
    with watched(browser, address, size={"width": wide, "height": 640}) as web:
        for name, path in (ADDRESSES | HARD).items():
            page = web.open(path(cluster))
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= wide, f"{name} is {width} wide"
            assert page.evaluate(CUT) == [], name


@pytest.mark.parametrize("width", [320, 344, 360, 390])
def test_no_cell_of_a_table_of_runs_is_cut_on_a_small_phone(
    browser: Browser, address: str, width: int
) -> None:
    with watched(browser, address, size={"width": width, "height": 640}, script=False) as web:
        for path in ("/", "/runs", "/runs?q=state:succeeded", "/jobs/archive"):
            page = web.open(path)
            assert page.locator("table.runs td:visible").count() > 0, path
            assert page.evaluate(CUT_CELLS) == [], path


def test_a_run_has_its_time_on_a_phone_too(browser: Browser, address: str) -> None:
    for size in (PHONE, SMALL):
        with watched(browser, address, size=size, script=False) as web:
            page = web.open("/runs")
            times = page.locator("tr[data-key] .when time:visible")
            assert times.count() == page.locator("tr[data-key]").count() > 0
            assert re.search(r"\d\d:\d\d", times.first.inner_text())
            box = times.first.bounding_box()
            assert box is not None
            assert box["width"] > 20


def test_watched_pages_repeat_no_request(
    browser: Browser, cluster: DevCluster, address: str
) -> None:
    paths = {name: ADDRESSES[name](cluster) for name in sorted(set(ADDRESSES) - STILL)}
    with ExitStack() as stack:
        pages = {name: stack.enter_context(watched(browser, address)) for name in paths}
        for name, web in pages.items():
            wait_until_stable(web.open(paths[name]))
            web.page.evaluate(COUNTING)
        for name in MOVING:
            changed(pages[name].page)
        for name, web in pages.items():
            asked = [one for one in web.requests if "/static/" not in one]
            assert asked == [f"GET {paths[name]}", f"GET /live{paths[name]}"], name


def changed(page: Page) -> None:
    """Wait until a page has changed again and again."""
    wait_until(lambda: page.evaluate("window.changes") > 20, WAIT_TIMEOUT, "changes")


def test_input_and_focus_stay_while_the_page_updates(web: Watched) -> None:
    page = web.open("/jobs")
    wait_until_stable(page)
    page.locator("tr", has_text="clock").get_by_role("button", name="Pause").click()
    reason = page.locator("#pause-clock input[name=reason]")
    reason.fill("not yet")
    before = page.locator("#jobs").inner_html()
    wait_until(lambda: page.locator("#jobs").inner_html() != before, WAIT_TIMEOUT, "a change")
    assert reason.input_value() == "not yet"
    assert reason.evaluate("it => it === document.activeElement")
    assert page.locator("#pause-clock").is_visible()


def test_every_control_is_reachable_by_keyboard(web: Watched) -> None:
    page = web.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.hasAttribute('data-row')")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("g j ?")  # typed into the field, and no shortcut
    assert page.evaluate("document.activeElement.value") == "g j ?"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()


def test_pages_and_forms_work_without_a_script(
    browser: Browser, cluster: DevCluster, address: str
) -> None:
    with watched(browser, address, script=False) as web:
        page = web.open("/jobs/weekly-report")
        page.get_by_role("button", name="Trigger").click()
        page.wait_for_url("**/runs/*")
        assert "weekly-report was triggered" in page.locator(".flash").inner_text()
        run_id = page.url.rpartition("/")[2]
        wait_until(
            lambda: cluster.json("run", "get", run_id)["state"] == "SUCCEEDED",
            WAIT_TIMEOUT,
            "its end",
        )
        wait_until(  # what was read a moment ago is shown to all who ask
            lambda: "succeeded" in web.open(f"/runs/{run_id}").locator("#run").inner_text(),
            WAIT_TIMEOUT,
            "the page to say so",
        )


def test_a_missing_address_has_a_not_found_page(web: Watched) -> None:
    page = web.open("/jobs/nowhere")
    assert "Job 'nowhere' not found" in page.locator("#problem").inner_text()
    page = web.open("/nothing/here")
    assert "No page at /nothing/here" in page.locator("#problem").inner_text()
    web.allow("status of 404")
