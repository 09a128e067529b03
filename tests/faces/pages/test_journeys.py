"""User journeys, from click to effect: in a real browser, judged by the cluster."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from faces.pages.browser import Watched, watched
from faces.pages.test_pages import wait_until_stable
from support.cluster import DevCluster
from support.wait import WAIT_TIMEOUT, wait_until

SLOW = 20_000
"""Milliseconds for what takes a moment on a busy machine."""

CHATTY = 'sh -c "cat; for n in 1 2 3; do echo line $n; sleep 0.4; done; echo oops >&2"'
SLEEPY = 'sh -c "echo here we go; sleep 120"'


def create(web: Watched, name: str, what: str) -> None:
    """Make a job on demand by the form; ends on its page."""
    page = web.open("/new-job")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Schedule").select_option("on_demand")
    page.get_by_label("Program and arguments").fill(what)
    page.get_by_label("Payload").fill('{"from": "a form"}')
    page.get_by_label("Priority").select_option("HIGH")
    page.get_by_role("button", name="Create job").click()
    page.wait_for_url(f"**/jobs/{name}")
    expect(page.locator(".flash")).to_have_text(f"{name} was created.")


def test_a_job_is_created_triggered_watched_and_its_log_is_read(
    web: Watched, cluster: DevCluster
) -> None:
    create(
        web,
        "greeter",
        CHATTY,
    )
    job = cluster.json("job", "get", "greeter")
    assert (job["priority"], job["payload"], job["onDemand"]) == ("HIGH", {"from": "a form"}, True)
    page = web.page
    page.get_by_role("button", name="Trigger").click()
    page.wait_for_url("**/runs/*")
    log = page.locator("#log-text")
    expect(log).to_contain_text("line 1", timeout=SLOW)
    expect(log).to_contain_text("line 3", timeout=SLOW)
    expect(log.locator(".err")).to_have_text(re.compile("oops"), timeout=SLOW)
    expect(log).to_contain_text('{"from":"a form"}')
    expect(page.locator("#run .state")).to_have_text("succeeded", timeout=SLOW)
    expect(page.locator("#live")).to_have_attribute("data-state", "still")  # it changes no more
    steps = page.locator("#timeline li")
    expect(steps.last).to_contain_text("Attempt 1 succeeded")
    run = cluster.json("run", "get", page.url.rpartition("/")[2])
    expect(page.locator("#timeline")).to_contain_text(run["fencingToken"])
    page.reload()  # the same, as it is kept
    expect(log).to_contain_text("line 1")
    expect(log.locator(".err")).to_have_text(re.compile("oops"))


def test_the_page_of_a_running_run_shows_its_log_and_the_script_follows_it(
    browser: Browser, web: Watched, cluster: DevCluster
) -> None:
    colours = "sh -c \"printf '\\033[31mred\\033[0m one\\n'; sleep 6; echo two; sleep 120\""
    create(web, "painter", colours)
    run_id = str(cluster.json("job", "trigger", "painter")["runId"])
    wait_until(
        lambda: cluster.json("run", "get", run_id)["state"] == "RUNNING", WAIT_TIMEOUT, "its start"
    )
    with watched(browser, web.address, script=False) as plain:

        def written() -> bool:
            return "red one" in plain.open(f"/runs/{run_id}").locator("#log-text").inner_text()

        wait_until(written, WAIT_TIMEOUT, "the log so far, without a script")
    log = web.open(f"/runs/{run_id}").locator("#log-text")
    expect(log).to_contain_text("two", timeout=SLOW)
    assert log.inner_text().split("\n")[:2] == ["red one", "two"]
    cluster.json("run", "cancel", run_id)


def test_a_run_is_cancelled_and_the_audit_log_keeps_the_reason(
    web: Watched, cluster: DevCluster
) -> None:
    create(web, "sleeper", SLEEPY)
    page = web.page
    page.get_by_role("button", name="Trigger").click()
    page.wait_for_url("**/runs/*")
    run_id = page.url.rpartition("/")[2]
    expect(page.locator("#run .state")).to_have_text("running", timeout=SLOW)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_label("Reason").fill("it sleeps too long")
    page.get_by_role("button", name="Cancel run").click()
    expect(page.locator("#run .state")).to_have_text("cancelled", timeout=SLOW)
    expect(page.locator("#timeline")).to_contain_text("it sleeps too long")
    [entry] = cluster.json("audit", "list", "--object", f"run/{run_id}", "--action", "cancel")
    assert "it sleeps too long" in entry["after"]
    page.get_by_role("button", name="Run again").click()
    page.wait_for_url(lambda url: not url.endswith(run_id))
    again = page.url.rpartition("/")[2]
    assert cluster.json("run", "get", again)["redriveOf"] == run_id
    cluster.schedctl("run", "cancel", again)


def test_a_job_is_paused_and_resumed_in_its_row(web: Watched, cluster: DevCluster) -> None:
    page = web.open("/jobs")
    row = page.locator("tr", has_text="nightly-etl")
    row.get_by_role("button", name="Pause").click()
    page.locator("#pause-nightly-etl").get_by_label("Reason").fill("the warehouse moves")
    page.get_by_role("button", name="Pause job").locator("visible=true").click()
    page.wait_for_url("**/jobs")
    expect(page.locator(".flash")).to_contain_text("nightly-etl is paused")
    expect(row.locator(".pill")).to_have_text("paused")
    assert cluster.json("job", "get", "nightly-etl")["pauseNote"] == "the warehouse moves"
    row.get_by_role("button", name="Resume").click()
    expect(page.locator(".flash")).to_contain_text("nightly-etl was resumed")
    assert not cluster.json("job", "get", "nightly-etl")["paused"]


def test_a_page_shows_a_change_made_elsewhere_without_a_reload(
    web: Watched, cluster: DevCluster
) -> None:
    page = web.open("/jobs")
    wait_until_stable(page)
    row = page.locator("tr", has_text="weekly-report")
    assert cluster.schedctl("job", "pause", "weekly-report").returncode == 0
    expect(row.locator(".pill")).to_have_text("paused", timeout=SLOW)
    assert cluster.schedctl("job", "resume", "weekly-report").returncode == 0
    expect(row.locator(".pill")).to_have_count(0, timeout=SLOW)


def test_deleting_a_job_requires_its_name(web: Watched, cluster: DevCluster) -> None:
    create(web, "short-lived", "true")
    page = web.page
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_label("Type the job name to confirm")).to_be_focused()
    page.get_by_label("Type the job name to confirm").fill("another")
    page.get_by_role("button", name="Delete job").click()
    expect(page.locator("#problem")).to_contain_text("doesn't match")
    web.allow("status of 400")
    page.get_by_role("link", name="Go back").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label("Type the job name to confirm").fill("short-lived")
    page.locator("#delete").get_by_label("Reason").fill("it was short")
    page.get_by_role("button", name="Delete job").click()
    page.wait_for_url("**/jobs")
    expect(page.locator(".flash")).to_have_text("short-lived was deleted.")
    assert cluster.schedctl("job", "get", "short-lived").returncode == 3
    [entry] = cluster.json("audit", "list", "--object", "job/default/short-lived", "--limit", "1")
    assert (entry["action"], entry["after"]) == ("delete", '{"note":"it was short"}')


def test_an_invalid_form_is_shown_again_with_its_values(web: Watched) -> None:
    page = web.open("/new-job?when=61 * * * *&what=true")
    page.get_by_label("Name", exact=True).fill("hopeless")
    page.get_by_role("button", name="Create job").click()
    expect(page.locator("#problem")).to_contain_text("61")
    expect(page.get_by_label("Name", exact=True)).to_have_value("hopeless")
    expect(page.get_by_label("Cron expression")).to_have_value("61 * * * *")
    web.allow("status of 400")


def test_a_cron_expression_is_explained_and_becomes_a_job(web: Watched) -> None:
    page = web.open("/cron")
    page.get_by_label("Cron expression").fill("0 9 * * MON-FRI")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#explained")).to_contain_text("Monday to Friday at 09:00")
    expect(page.locator("#explained li")).to_have_count(10)
    assert "expression=0+9" in page.url
    page.get_by_role("link", name="Create job").click()
    expect(page.get_by_label("Cron expression")).to_have_value("0 9 * * MON-FRI")
    page = web.open("/cron?expression=1 2 3")
    expect(page.get_by_role("alert")).to_be_visible()


def test_the_query_in_the_address_filters_runs(web: Watched) -> None:
    page = web.open("/runs")
    page.get_by_label("Search runs").fill("job:broken-import")
    page.get_by_role("button", name="Search").click()
    page.locator("#states").get_by_role("link", name="failed").click()
    assert "state%3Afailed" in page.url
    assert set(page.locator("#runs td.job").all_inner_texts()) == {"broken-import ×2"}
    assert all("failed" in text for text in page.locator("#runs td .state").all_inner_texts())
    web.open("/runs?q=colour:red")
    expect(page.locator("#problem")).to_contain_text("the search field is unknown")
    expect(page.get_by_label("Search runs")).to_have_value("colour:red")
    web.allow("status of 400")


def test_a_scheduled_time_of_a_job_is_explained(web: Watched, cluster: DevCluster) -> None:
    [run] = cluster.json("run", "list", "--job", "clock", "--state", "succeeded", "--limit", "1")
    page = web.open("/jobs/clock")
    page.get_by_label("At, in UTC").fill(run["scheduledAt"][:19])
    page.get_by_role("button", name="Explain").click()
    expect(page.locator("#answer")).to_contain_text("The job ran")
    expect(page.locator("#answer")).to_contain_text(run["runId"])


def test_dead_letters_are_redriven_and_the_rest_discarded(
    web: Watched, cluster: DevCluster
) -> None:
    page = web.open("/dead-letters")
    row = page.locator("#groups tr", has_text="broken-import")
    row.get_by_role("button", name="Redrive", exact=True).click()
    page.get_by_label("Rate, runs per second").locator("visible=true").fill("20")
    page.get_by_label("Reason").locator("visible=true").fill("the warehouse is back")
    page.get_by_role("button", name=re.compile("Redrive dead letters?")).locator(
        "visible=true"
    ).click()
    page.wait_for_url("**/dead-letters")
    expect(page.locator(".flash")).to_contain_text("queued for redrive")
    expect(page.locator("#redrives")).to_contain_text("done", timeout=SLOW)
    [redrive, *_] = cluster.json("dlq", "redrives")
    [entry] = cluster.json("audit", "list", "--object", f"redrive/{redrive['redriveId']}")
    assert '"note":"the warehouse is back"' in entry["after"]
    assert redrive["job"] == "broken-import"
    assert redrive["created"] == redrive["total"] > 0
    row = page.locator("#groups tr", has_text="flaky")
    row.get_by_role("button", name="Discard", exact=True).click()
    page.get_by_label("Reason").locator("visible=true").fill("it is only flaky")
    page.get_by_role("button", name=re.compile("Discard dead letters?")).locator(
        "visible=true"
    ).click()
    expect(page.locator(".flash")).to_contain_text("discarded")


def test_a_dialog_keeps_its_input_when_its_row_moves(web: Watched, cluster: DevCluster) -> None:
    for name, dead in (("greater", 3), ("lesser", 2)):
        once = ("--on-demand", "--overlap", "allow", "--max-attempts", "1", "--", "false")
        made = cluster.schedctl("job", "create", name, *once)
        assert made.returncode == 0, made.stderr
        failed(cluster, name, dead)
    page = web.open("/dead-letters")
    wait_until_stable(page)
    rows = page.locator("#groups a[data-row]", has_text=re.compile("^(greater|lesser)$"))
    page.locator("#groups tr", has_text="lesser").get_by_role("button", name="Discard").click()
    reason = page.get_by_label("Reason").locator("visible=true")
    reason.fill("known since Monday")
    expect(rows).to_have_text(["greater", "lesser"])
    failed(cluster, "lesser", 2)
    expect(rows).to_have_text(["lesser", "greater"], timeout=SLOW)
    message = page.get_by_text("All 2 dead letters of lesser").locator("visible=true")
    expect(message).to_be_visible()  # it acts on as many as it named when it was opened
    assert reason.input_value() == "known since Monday"
    assert reason.evaluate("it => it === document.activeElement")
    page.get_by_role("button", name="Discard dead letters").locator("visible=true").click()
    expect(page.locator(".flash")).to_contain_text("2 dead letters are discarded")
    [entry, *_] = cluster.json("audit", "list", "--object", "dead letters")
    assert "known since Monday" in entry["after"]
    assert '"job":"lesser"' in entry["after"]


def test_an_open_dialog_keeps_its_content_and_a_reopened_one_shows_the_current_state(
    web: Watched, cluster: DevCluster
) -> None:
    once = ("--on-demand", "--overlap", "allow", "--max-attempts", "1", "--", "false")
    made = cluster.schedctl("job", "create", "flowing", *once)
    assert made.returncode == 0, made.stderr
    failed(cluster, "flowing", 2)
    page = web.open("/dead-letters")
    wait_until_stable(page)
    row = page.locator("#groups tr", has_text="flowing")
    row.get_by_role("button", name="Redrive", exact=True).click()
    dialog = row.get_by_role("dialog", name="Redrive dead letters?")
    as_read = dialog.inner_html()
    assert "All 2 dead letters" in as_read
    failed(cluster, "flowing", 3)
    expect(row.locator("td.n").first).to_have_text("5", timeout=SLOW)
    assert dialog.inner_html() == as_read
    dialog.get_by_role("button", name="Cancel").click()
    row.get_by_role("button", name="Redrive", exact=True).click()
    expect(dialog).to_contain_text("All 5 dead letters", timeout=SLOW)


def test_a_dialog_that_isnt_redrawn_acts_on_the_dead_letters_it_shows(
    browser: Browser, address: str, cluster: DevCluster
) -> None:
    once = ("--on-demand", "--overlap", "allow", "--max-attempts", "1", "--", "false")
    made = cluster.schedctl("job", "create", "growing", *once)
    assert made.returncode == 0, made.stderr
    failed(cluster, "growing", 2)
    with watched(browser, address, script=False) as web:
        page = web.open("/dead-letters")
        row = page.locator("#groups tr", has_text="growing")
        wait_until(lambda: page.reload() and row.count(), WAIT_TIMEOUT, "the group on the page")
        row.get_by_role("button", name="Discard", exact=True).click()
        expect(row.get_by_role("dialog", name="Discard dead letters?")).to_contain_text(
            "All 2 dead letters"
        )
        failed(cluster, "growing", 3)
        page.get_by_role("button", name="Discard dead letters").locator("visible=true").click()
        expect(page.locator(".flash")).to_contain_text("2 dead letters are discarded")
    assert len(cluster.json("dlq", "list", "--job", "growing")) == 3


def failed(cluster: DevCluster, job: str, count: int) -> None:
    """So many runs of a job more, which wait as dead letters when this returns."""
    there = len(cluster.json("dlq", "list", "--job", job))
    for _ in range(count):
        cluster.schedctl("job", "trigger", job)
    wait_until(
        lambda: len(cluster.json("dlq", "list", "--job", job)) == there + count,
        WAIT_TIMEOUT,
        "dead letters",
    )


def test_a_worker_is_drained_and_takes_work_again(web: Watched, cluster: DevCluster) -> None:
    page = web.open("/workers")
    row = page.locator("tr[data-key=w2]")
    row.get_by_role("button", name="Drain", exact=True).click()
    page.locator("#drain-w2").get_by_label("Reason").fill("new disks")
    page.locator("#drain-w2").get_by_role("button", name="Drain worker").click()
    expect(page.locator(".flash")).to_contain_text("w2 is draining")
    expect(row.locator(".pill")).to_have_text("draining", timeout=SLOW)
    expect(row).to_contain_text("new disks")
    row.get_by_role("button", name="Undrain").click()
    expect(row.locator(".pill")).to_have_count(0, timeout=SLOW)
    wait_until(
        lambda: cluster.json("worker", "describe", "w2")["state"] == "LIVE",
        WAIT_TIMEOUT,
        "w2 to live",
    )


def test_the_cluster_is_paused_and_resumed_and_another_member_becomes_leader(
    web: Watched, cluster: DevCluster
) -> None:
    page = web.open("/cluster")
    leader = cluster.leader()
    other = page.locator("#members tr", has=page.get_by_role("button", name="Make leader"))
    other.get_by_role("button", name="Make leader").click()
    page.get_by_role("button", name="Transfer leadership").locator("visible=true").click()
    expect(page.locator(".flash")).to_contain_text("is the leader, term")
    wait_until(lambda: cluster.leader() not in (None, leader), WAIT_TIMEOUT, "another leader")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#pause").get_by_label("Reason")).to_be_focused()
    page.locator("#pause").get_by_label("Reason").fill("the disks are full")
    page.get_by_role("button", name="Pause cluster").click()
    expect(page.locator("#problems")).to_contain_text("the disks are full")
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_label("Runs that became due during the pause")).to_be_focused()
    page.get_by_role("button", name="Resume cluster").click()
    expect(page.locator("#problems")).to_have_count(0, timeout=SLOW)
    assert not cluster.json("cluster", "status")["paused"]


def test_a_dialog_closes_with_a_notice_when_its_subject_no_longer_exists(
    web: Watched, cluster: DevCluster
) -> None:
    made = cluster.schedctl("job", "create", "paused-by-two", "--on-demand", "--", "true")
    assert made.returncode == 0, made.stderr
    page = web.open("/jobs/paused-by-two")
    wait_until_stable(page)
    page.get_by_role("button", name="Pause", exact=True).click()
    page.locator("#pause").get_by_label("Reason").fill("the warehouse moves")
    assert cluster.schedctl("job", "pause", "paused-by-two").returncode == 0
    notice = "“Pause paused-by-two?” was closed: its object was removed, or has changed."
    expect(page.locator("#notices")).to_have_text(notice, timeout=SLOW)


def test_a_dialog_keeps_its_input_without_a_script(browser: Browser, address: str) -> None:
    with watched(browser, address, script=False) as web:
        page = web.open("/jobs/nightly-etl")
        expect(page.get_by_role("link", name="Reload")).to_be_visible()
        assert page.locator("meta[http-equiv=refresh]").count() == 0
        page = web.open("/runs")
        expect(page.get_by_role("link", name="Reload")).to_have_count(0)
