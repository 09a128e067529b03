"""Turn a dashboard in TOML into the JSON of Grafana's file provisioning.

    [[rows.panels]]
    title, text, unit
    series.LEGEND = 'PromQL', or a list of it   lines over time, `stacked` or not
    value = 'PromQL'                            one value, colored by its thresholds
    buckets = 'PromQL'                          a heat map of a histogram
    steps = [["green"], ["red", 5]]             thresholds: red from 5 on; several are drawn

Invariants
- Each panel names the variable `datasource` and no fixed data source.
- Each panel has a title, a unit, a description, and a legend for each query.
- Ids and positions follow from the order, so the same rows give the same JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

SCHEMA: Final = 39
"""The schema of Grafana 10.4. Later versions accept it, and migrate it when they load it."""
WIDTH: Final = 24
"""The width of the grid."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]

NUMBER: Final[Json] = {
    "colorMode": "background",
    "graphMode": "none",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
}
LINES: Final[Json] = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
HEAT: Final[Json] = {
    "calculate": False,
    "yAxis": {"unit": "s"},
    "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
    "cellGap": 1,
    "tooltip": {"mode": "single", "yHistogram": True},
}
LINKS: Final[Json] = {
    "type": "dashboards",
    "title": "schedd",
    "tags": ["schedd"],
    "asDropdown": False,
    "keepTime": True,
}
"""Links to all dashboards of schedd."""
TERMS: Final[Json] = {
    "name": "change of leader",
    "datasource": SOURCE,
    "enable": True,
    "iconColor": "blue",
    "expr": "changes(max(schedd_term)[1m:15s]) > 0",
    "titleFormat": "new leader",
}
"""An annotation on every panel: each change of leader."""


def dashboard(given: Mapping[str, Any]) -> Json:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "current": {},
    }
    return {
        "uid": given["uid"],
        "title": given["title"],
        "description": given["description"],
        "tags": ["schedd"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [LINKS],
        "annotations": {"list": [TERMS]},
        "templating": {"list": [source, *map(_variable, given.get("variables", ()))]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_laid(given), 1)],
    }


def _variable(given: Mapping[str, str]) -> Json:
    """Return a variable with the values of a label, to choose from; all of them at first."""
    return {
        "name": given["name"],
        "label": given["label"],
        "type": "query",
        "datasource": SOURCE,
        "definition": given["query"],
        "query": {"query": given["query"], "refId": given["name"]},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _laid(given: Mapping[str, Any]) -> Iterator[Json]:
    """Yield headings and their panels, from left to right in as many lines as needed."""
    y = 0
    for row in given["rows"]:
        place = {"w": WIDTH, "h": 1, "x": 0, "y": y}
        heading = {"type": "row", "title": row["title"], "gridPos": place}
        yield heading | {"collapsed": False, "panels": []}
        x, y, height = 0, y + 1, 0
        for one in row["panels"]:
            width, high = (3, 4) if "value" in one else (8, 8)
            if x + width > WIDTH:
                x, y, height = 0, y + height, 0
            yield _panel(one, {"x": x, "y": y, "w": width, "h": high})
            x, height = x + width, max(height, high)
        y += height


def _panel(given: Mapping[str, Any], place: Json) -> Json:
    steps, custom = given.get("steps", [["green"]]), {}
    if "value" in given:
        kind, options, series = "stat", NUMBER, {given["title"]: given["value"]}
    elif "buckets" in given:
        kind, options, series = "heatmap", HEAT, {"{{le}}": given["buckets"]}
    else:
        kind, options, series = "timeseries", LINES, given["series"]
        stacked = given.get("stacked", False)
        custom = {
            "fillOpacity": 30 if stacked else 0,
            "stacking": {"mode": "normal" if stacked else "none"},
            "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
            "showPoints": "never",
        }
    colors = [{"color": step[0], "value": step[1] if step[1:] else None} for step in steps]
    defaults = {
        "unit": given["unit"],
        "custom": custom,
        "thresholds": {"mode": "absolute", "steps": colors},
    }
    if kind == "timeseries":
        defaults["min"] = 0
    return {
        "type": kind,
        "title": given["title"],
        "description": given["text"],
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": list(_targets(kind, series)),
    }


def _targets(kind: str, series: Mapping[str, str | list[str]]) -> Iterator[Json]:
    pairs = [
        (legend, expr)
        for legend, exprs in series.items()
        for expr in ([exprs] if isinstance(exprs, str) else exprs)
    ]
    for at, (legend, expr) in enumerate(pairs):
        yield {
            "refId": chr(ord("A") + at),
            "datasource": SOURCE,
            "expr": expr,
            "legendFormat": legend,
            "editorMode": "code",
            "range": kind != "stat",
            "instant": kind == "stat",
            **({"format": "heatmap"} if kind == "heatmap" else {}),
        }
