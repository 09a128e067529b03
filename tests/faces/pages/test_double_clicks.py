"""Two clicks within a moment act once; a later click acts again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from playwright.sync_api import Page, expect

from faces.pages.browser import Watched
from faces.pages.test_pages import wait_until_stable
from support.cluster import DevCluster

BETWEEN = 60
"""Milliseconds between the two clicks."""
TWICE = 600
"""Milliseconds past which the same is meant again."""
ANSWER_ELSEWHERE = """document.addEventListener(
  "click", ({target}) => target.closest("form")?.setAttribute("target", "_blank"), true
)"""
"""As a click with Ctrl does."""

UNANSWERED = """window.sent = [];
addEventListener("submit", (event) => {
  event.preventDefault();
  window.sent.push(new FormData(event.target).get("request_id"));
})"""
"""As from a member that takes its time: the page stays, and its forms were sent."""


def click_twice(page: Page, name: str) -> None:
    """As who is used to double clicks does."""
    place = page.get_by_role("button", name=name).bounding_box()
    assert place is not None
    at = (place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    with page.expect_navigation():
        page.mouse.click(*at)
        page.wait_for_timeout(BETWEEN)
        page.mouse.click(*at)
    page.wait_for_load_state()


def create_job(cluster: DevCluster, name: str) -> None:
    """A job on demand."""
    done = cluster.schedctl("job", "create", name, "--on-demand", "--", "true")
    assert done.returncode == 0, done.stderr


def runs_of(cluster: DevCluster, name: str) -> int:
    """How many there are."""
    return len(cluster.json("run", "list", "--job", name))


def test_a_double_click_triggers_once_and_the_next_click_again(
    web: Watched, cluster: DevCluster
) -> None:
    create_job(cluster, "twice")
    for times in (1, 2):
        page = web.open("/jobs?filter=twice")
        wait_until_stable(page)
        click_twice(page, "Trigger")
        expect(page.locator(".flash")).to_contain_text("twice was triggered")
        assert runs_of(cluster, "twice") == times
        assert len([one for one in web.requests if one.startswith("POST")]) == times
        page.wait_for_timeout(TWICE)


def test_a_form_corrected_at_once_is_sent_again(web: Watched) -> None:
    page = web.open("/new-job?name=corrected-at-once&what=true")
    for when in ("61 * * * *", "1 * * * *"):
        page.get_by_label("Cron expression").fill(when)
        with page.expect_navigation():
            page.get_by_role("button", name="Create job").click()
    page.wait_for_url("**/jobs/corrected-at-once")
    web.allow("status of 400")


def test_a_page_that_stays_open_sends_a_new_request_after_an_answer(
    web: Watched, cluster: DevCluster
) -> None:
    """The page stays where the answer goes elsewhere: into a tab of its own."""
    create_job(cluster, "elsewhere")
    page = web.open("/jobs?filter=elsewhere")
    wait_until_stable(page)
    page.evaluate(ANSWER_ELSEWHERE)
    for times in (1, 2):
        with page.context.expect_page() as opened:
            page.get_by_role("button", name="Trigger").click()
        expect(opened.value.locator(".flash")).to_contain_text("elsewhere was triggered")
        assert runs_of(cluster, "elsewhere") == times
        page.wait_for_timeout(TWICE)


def test_clicks_during_a_slow_answer_repeat_the_same_request(
    web: Watched, cluster: DevCluster
) -> None:
    create_job(cluster, "slow")
    page = web.page
    page.clock.install()
    web.open("/jobs?filter=slow")
    wait_until_stable(page)
    page.evaluate(UNANSWERED)
    for _ in range(3):
        page.get_by_role("button", name="Trigger").click()
        page.clock.fast_forward("01:00")
    stamps = page.evaluate("window.sent")
    assert len(stamps) == 3
    assert len({*stamps}) == 1, "one request, sent three times"


def test_a_click_that_isnt_sent_shows_a_notice_and_doesnt_delay_the_next(
    web: Watched, cluster: DevCluster
) -> None:
    create_job(cluster, "patient")
    page = web.open("/jobs?filter=patient")
    at = datetime(2026, 3, 4, 12, tzinfo=UTC)
    notices = page.locator("#notices")
    for passed, times in ((0, 1), (400, 1), (700, 2), (1_300, 3)):
        page.clock.set_fixed_time(at + timedelta(milliseconds=passed))
        button = page.get_by_role("button", name="Trigger")
        if passed == 400:
            button.click()
            expect(notices).to_contain_text("click again to send it again")
            assert notices.get_attribute("role") == "status"
        else:
            with page.expect_navigation():
                button.click()
            expect(notices).to_have_text("")
            expect(page.locator(".flash")).to_contain_text("patient was triggered")
        assert runs_of(cluster, "patient") == times


def test_a_double_click_creates_one_job_and_confirms_it(web: Watched, cluster: DevCluster) -> None:
    page = web.open("/new-job")
    page.get_by_label("Name", exact=True).fill("once-made")
    page.get_by_label("Schedule").select_option("on_demand")
    page.get_by_label("Program and arguments").fill("true")
    click_twice(page, "Create job")
    page.wait_for_url("**/jobs/once-made")
    expect(page.locator(".flash")).to_have_text("once-made was created.")
    assert len([one for one in web.requests if one.startswith("POST")]) == 1


def test_a_page_restored_from_the_browser_cache_sends_a_new_request(
    web: Watched, cluster: DevCluster
) -> None:
    create_job(cluster, "left")
    page = web.open("/jobs?filter=left")
    wait_until_stable(page)
    page.evaluate(ANSWER_ELSEWHERE)
    for times in (1, 2):
        with page.context.expect_page() as opened:
            page.get_by_role("button", name="Trigger").click()
        opened.value.wait_for_load_state()
        assert runs_of(cluster, "left") == times
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")


FORBIDDEN = """for (const area of ["sessionStorage", "localStorage"])
  Object.defineProperty(window, area, {
    get() { throw new DOMException("Access is denied for this document.", "SecurityError"); },
  });"""
"""As a browser does that is to keep nothing."""


def test_pages_and_keys_work_without_browser_storage(web: Watched, cluster: DevCluster) -> None:
    create_job(cluster, "keeps-nothing")
    web.page.add_init_script(FORBIDDEN)
    page = web.open("/jobs?filter=keeps-nothing")
    wait_until_stable(page)
    with page.expect_navigation():
        page.get_by_role("button", name="Trigger").click()
    expect(page.locator(".flash")).to_contain_text("keeps-nothing was triggered")
    wait_until_stable(page)
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
