"""Grafana's dashboards: as their code makes them, of the shape that Grafana takes, and about what
is exported (deploy/grafana).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.dashboards import DASHBOARDS, FOLDER, Panel, panels
from support.exported_metrics import Exported, exported, labels_of, named
from support.repository import ROOT

RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
RULED = [rule for group in RULES["groups"] for rule in group["rules"]]
RECORDED = {rule["record"] for rule in RULED if "record" in rule}
UNITS = {"short", "s", "ops", "bytes", "percentunit"}
KINDS = {"row", "stat", "timeseries", "heatmap"}
EACH = [pytest.param(one, id=one.id) for one in panels()]


@pytest.fixture(scope="module")
def known() -> Exported:
    return exported()


def test_dashboards_are_as_their_code_generates_them(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "grafana")
    for stale in (tmp_path / "grafana" / "dashboards").iterdir():
        stale.unlink()
    subprocess.run([sys.executable, "-B", tmp_path / "grafana" / "generate"], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "grafana/dashboards").iterdir()}
    kept = {path.name: path.read_text() for path in (FOLDER / "dashboards").iterdir()}
    assert made == kept, "run deploy/grafana/generate"


@pytest.mark.parametrize("panel", EACH)
def test_a_panel_names_metrics_and_labels_that_a_member_or_a_worker_exports(
    panel: Panel, known: Exported
) -> None:
    for query in panel.queries:
        asked = named(query.expr)
        assert asked.metrics or asked.recorded or "ALERTS" in query.expr
        assert asked.metrics <= known.keys(), query.expr
        assert asked.recorded <= RECORDED, query.expr
        theirs = {"pool"} if asked.recorded else set()
        if "ALERTS" in query.expr:
            theirs |= {"alertname", "alertstate"}
        allowed = labels_of(asked.metrics, known) | theirs
        assert asked.labels <= allowed, query.expr
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= allowed, query.legend


@pytest.mark.parametrize("panel", EACH)
def test_a_legend_uses_only_labels_that_its_query_returns(panel: Panel) -> None:
    for query in panel.queries:
        grouped = re.search(r"^(?:sum|min|max|count)(?: by \(([^)]*)\))? ?\(", query.expr)
        if grouped and panel.kind != "heatmap":
            left = {one.strip() for one in (grouped[1] or "").split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= left, query.expr


@pytest.mark.parametrize("panel", EACH)
def test_a_panel_says_what_it_shows_in_which_unit(panel: Panel) -> None:
    shown = panel.json
    defaults = shown["fieldConfig"]["defaults"]
    assert shown["type"] in KINDS
    assert shown["title"]
    assert shown["description"].endswith(".")
    assert defaults["unit"] in UNITS
    assert all(query.legend for query in panel.queries)
    steps = [step["value"] for step in defaults["thresholds"]["steps"]]
    assert steps[0] is None
    assert steps[1:] == sorted(steps[1:])
    assert shown["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert [target["datasource"] for target in shown["targets"]] == [shown["datasource"]] * len(
        shown["targets"]
    )
    assert len({target["refId"] for target in shown["targets"]}) == len(shown["targets"])


@pytest.mark.parametrize("made", DASHBOARDS, ids=lambda made: made["uid"])
def test_a_dashboard_has_the_shape_that_file_provisioning_accepts(made: dict[str, Any]) -> None:
    """Grafana drops or refuses none of its ids, places and variables on load."""
    assert re.fullmatch(r"[a-z-]{1,40}", made["uid"])
    assert "id" not in made, "Grafana's own, of one database"
    assert made["schemaVersion"] >= 36
    assert {"title", "tags", "time", "refresh", "templating", "annotations"} <= made.keys()
    numbers = [panel["id"] for panel in made["panels"]]
    assert len(set(numbers)) == len(numbers)
    variables = {one["name"] for one in made["templating"]["list"]}
    first = made["templating"]["list"][0]
    assert (first["type"], first["query"], first["name"]) == (
        "datasource",
        "prometheus",
        "datasource",
    )
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made["panels"] + made["annotations"]["list"])))
    assert used - {"__rate_interval"} <= variables
    assert variables <= used, "one that nothing asks for"


@pytest.mark.parametrize("made", DASHBOARDS, ids=lambda made: made["uid"])
def test_panels_are_in_rows_within_the_grid_and_do_not_overlap(
    made: dict[str, Any],
) -> None:
    assert made["panels"][0]["type"] == "row"
    places = [panel["gridPos"] for panel in made["panels"]]
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 for at in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_each_metric_is_in_a_panel_or_an_alert(known: Exported) -> None:
    asked = [query.expr for panel in panels() for query in panel.queries]
    asked += [rule["expr"] for rule in RULED]
    named_somewhere = set[str]().union(*(named(expr).metrics for expr in asked))
    families = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in known}
    ours = {name for name in families if name.startswith(("schedd_", "workerd_"))}
    ends = ("", "_total", "_bucket")
    assert {one for one in ours if not any(one + end in named_somewhere for end in ends)} == {
        "schedd_build",
        "schedd_build_info",
    }
