"""The alerts are about metrics that members and workers export, and each has a test and a runbook
(deploy/prometheus, docs/operations/alerts.md).
"""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
import yaml

from schedctl.app import root
from support.exported_metrics import Exported, exported, labels_of, named
from support.repository import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
TESTS = yaml.safe_load((FOLDER / "alerts.test.yml").read_text(encoding="utf-8"))
ALL: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]
RECORDED = {rule["record"] for rule in ALL if "record" in rule}
LABELS_OF_RECORDED = {"schedd:pool_slots:minimum": {"pool"}}
RUNBOOK = (ROOT / "docs" / "operations" / "alerts.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def known() -> Exported:
    return exported()


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_names_metrics_and_labels_that_a_member_or_a_worker_exports(
    rule: dict[str, Any], known: Exported
) -> None:
    asked = named(rule["expr"])
    assert asked.metrics <= known.keys(), rule["expr"]
    assert asked.recorded <= RECORDED, rule["expr"]
    recorded = set().union(*(LABELS_OF_RECORDED.get(name, set()) for name in asked.recorded))
    assert asked.labels <= labels_of(asked.metrics, known) | recorded, rule["expr"]


def test_names_are_found_anywhere_in_an_expression_but_not_in_comments() -> None:
    asked = named(
        'sum by (le, call) (rate(schedd_x_bucket{a="1", b!~"2"}[5m])) / on (pool) schedd:y:z_7d'
        "\n  # schedd_commented\n"
    )
    assert asked.metrics == {"schedd_x_bucket"}
    assert asked.recorded == {"schedd:y:z_7d"}
    assert asked.labels == {"le", "call", "a", "b", "pool"}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_rule_has_a_test_in_which_it_fires_and_one_in_which_it_is_quiet(
    rule: dict[str, Any],
) -> None:
    wanted = f'alertname="{rule["alert"]}"'
    tried = [one for test in TESTS["tests"] for one in test.get("promql_expr_test", ())]
    fires = {bool(one["exp_samples"]) for one in tried if wanted in one["expr"]}
    assert fires == {True, False}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "action"}


def test_a_summary_names_the_period_of_its_number() -> None:
    words = {"1h": "the last hour", "24h": "the last day", "1d": "the last day"}
    with_period = [rule for rule in ALERTS if "in the last " in rule["annotations"]["summary"]]
    assert "ScheddNotificationsAbandoned" in {rule["alert"] for rule in with_period}
    for rule in with_period:
        [window] = set(re.findall(r"increase\(\w+\[(\w+)\]\)", rule["expr"]))
        assert f"in {words[window]}" in rule["annotations"]["summary"], rule["alert"]


def test_a_summary_has_whole_numbers_and_marks_estimates_with_about() -> None:
    """`increase` looks past its samples: 7.524 instants were missed. Else a number is a time."""
    counts = 0
    for rule in ALERTS:
        summary = rule["annotations"]["summary"]
        for shown in re.findall(r"\{\{ \$value(.*?) \}\}", summary):
            assert shown in (" | humanizeDuration", ' | printf "%.0f"'), rule["alert"]
            counts += "printf" in shown
            estimated = "increase(" in rule["expr"]
            assert summary.startswith("about {{ $value") is estimated, rule["alert"]
    assert counts > 5


def test_the_runbook_has_a_line_for_each_alert_and_for_no_other() -> None:
    lines = re.findall(r"^\| `(Schedd\w+)` \| (.+) \| (.+) \| (.+) \|$", RUNBOOK, re.MULTILINE)
    assert sorted(name for name, *_ in lines) == sorted(rule["alert"] for rule in ALERTS)
    for name, *cells in lines:
        assert all(len(cell) > 15 for cell in cells), name


def _texts() -> list[tuple[str, str]]:
    return [(rule["alert"], text) for rule in ALERTS for text in rule["annotations"].values()]


def test_each_page_and_heading_that_an_alert_names_exists() -> None:
    named = [
        (alert, page, heading)
        for alert, text in _texts()
        for page, heading in re.findall(r'(docs/[\w./-]+\.md)(?:, "([^"]+)")?', text)
    ]
    assert "ScheddGreaterTokenSeen" in {alert for alert, *_ in named}
    for alert, page, heading in named:
        assert (ROOT / page).is_file(), f"{alert} names {page}"
        titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not heading or heading in titles, f"{alert} names it, of {page}"


def test_each_command_that_an_alert_names_is_one_of_schedctls() -> None:
    named = [
        (alert, line)
        for alert, text in _texts()
        for line in re.findall(r"`schedctl ([^`]+)`", text)
    ]
    assert len(named) > 5
    for alert, line in named:
        words = line.split()
        command: click.Command = root
        while isinstance(command, click.Group):
            assert words, f"{alert} names `{line}`, which are several commands"
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, f"{alert} names `{line}`"
            command = found
        known = {flag for param in command.params for flag in param.opts}
        assert {word for word in words if word.startswith("-")} <= known, f"{alert}: `{line}`"


def test_a_command_that_an_alert_gives_for_dead_letters_groups_them() -> None:
    said = [text for _, text in _texts() if "groups them" in text]
    assert len(said) == 2
    assert all("`schedctl dlq groups` groups them" in text for text in said)
