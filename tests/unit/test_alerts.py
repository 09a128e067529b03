"""The alerts are about metrics that members export, and each has a test (deploy/prometheus)."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from schedd.telemetry import Telemetry
from support.repository import ROOT
from support.web import ToldCluster

FOLDER = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
TESTS = yaml.safe_load((FOLDER / "alerts.test.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
THEIRS = {"job", "instance"}
"""Labels that Prometheus puts there."""


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """What a member exports: each series with its labels, also where it has no value yet."""
    telemetry = Telemetry()
    telemetry.observe(ToldCluster(), "0.1")
    series: dict[str, set[str]] = {}
    for metric in telemetry.registry.collect():
        for sample in metric.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    for one in vars(telemetry._metrics).values():
        if isinstance(one, MetricWrapperBase):
            for end in ("", "_total", "_bucket", "_count", "_sum"):
                series.setdefault(one._name + end, set()).update(one._labelnames)
    return series


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_and_labels_that_a_member_exports(
    rule: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    expression = rule["expr"]
    named = re.findall(r"\bschedd_\w+", expression)
    assert set(named) <= exported.keys(), expression
    known = THEIRS.union(*(exported[name] for name in named), {"le"})
    grouped = re.findall(r"\bby \(([^)]*)\)", expression)
    matched = re.findall(r"[{,]\s*(\w+)\s*[=!]", expression)
    labels = {one.strip() for each in grouped for one in each.split(",")} | set(matched)
    assert labels <= known, expression


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_rule_has_a_test_in_which_it_fires_and_one_in_which_it_is_quiet(
    rule: dict[str, Any],
) -> None:
    wanted = f'alertname="{rule["alert"]}"'
    tried = [one for test in TESTS["tests"] for one in test["promql_expr_test"]]
    fires = {bool(one["exp_samples"]) for one in tried if wanted in one["expr"]}
    assert fires == {True, False}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "action"}
