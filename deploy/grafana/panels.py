"""Parts of Grafana dashboards: panels in rows, as the JSON of file provisioning.

    Row("Lateness", [lines("Start lateness", "…", "s", Query("…", "p99"))]) ──dashboard──→ {…}

Invariants
- Each panel names the variable `datasource` and no fixed data source.
- Each panel has a title, a unit, a description, and a legend for each query.
- Ids and positions follow from the order, so the same rows give the same JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

SCHEMA: Final = 39
"""The schema of Grafana 10.4. Later versions accept it, and migrate it when they load it."""
WIDTH: Final = 24
"""The width of the grid."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"

Json = dict[str, Any]
Steps = Sequence[tuple[float | None, str]]
"""Thresholds: the value from which a color applies; None: from the lowest value."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `kind`: Grafana's type; `steps`: thresholds."""

    kind: str
    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    steps: Steps = ((None, GREEN),)
    width: int = 8
    height: int = 8
    options: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)
    least: float | None = None
    """The minimum of the axis."""

    def json(self, number: int, x: int, y: int) -> Json:
        """Return Grafana's JSON of the panel, at this position."""
        defaults: Json = {
            "unit": self.unit,
            "custom": self.custom,
            "thresholds": {
                "mode": "absolute",
                "steps": [{"color": color, "value": value} for value, color in self.steps],
            },
        }
        if self.least is not None:
            defaults["min"] = self.least
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.text,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": self.options,
            "targets": [
                {
                    "refId": chr(ord("A") + at),
                    "datasource": SOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend,
                    "editorMode": "code",
                    "range": self.kind != "stat",
                    "instant": self.kind == "stat",
                    **({"format": "heatmap"} if self.kind == "heatmap" else {}),
                }
                for at, query in enumerate(self.queries)
            ],
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels below it, from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable with the values of a label, to choose from; all of them at first."""

    name: str
    label: str
    query: str

    def json(self) -> Json:
        """Return Grafana's JSON of the variable."""
        return {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": SOURCE,
            "definition": self.query,
            "query": {"query": self.query, "refId": self.name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def number(title: str, text: str, unit: str, query: str, steps: Steps, width: int = 3) -> Panel:
    """Return a panel with one value, colored by its thresholds."""
    options = {
        "colorMode": "background",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return Panel("stat", title, text, unit, [Query(query, title)], steps, width, 4, options)


def lines(
    title: str,
    text: str,
    unit: str,
    *queries: Query,
    steps: Steps = ((None, GREEN),),
    stacked: bool = False,
    width: int = 8,
) -> Panel:
    """Return a panel of series over time. Thresholds are drawn if there are several."""
    custom = {
        "fillOpacity": 30 if stacked else 0,
        "stacking": {"mode": "normal" if stacked else "none"},
        "thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"},
        "showPoints": "never",
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return Panel(
        "timeseries", title, text, unit, queries, steps, width, 8, options, custom, least=0
    )


def heat(title: str, text: str, unit: str, query: str, width: int = 8) -> Panel:
    """Return a panel of a histogram's buckets over time."""
    options = {
        "calculate": False,
        "yAxis": {"unit": unit},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "cellGap": 1,
        "tooltip": {"mode": "single", "yHistogram": True},
    }
    return Panel(
        "heatmap", title, text, unit, [Query(query, "{{le}}")], width=width, options=options
    )


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
    "iconColor": BLUE,
    "expr": "changes(max(schedd_term)[1m:15s]) > 0",
    "titleFormat": "new leader",
}
"""An annotation on every panel: each change of leader."""


def dashboard(
    uid: str, title: str, text: str, rows: Sequence[Row], variables: Sequence[Variable] = ()
) -> Json:
    """Return a dashboard."""
    panels: list[Json] = []
    y = 0
    for row in rows:
        heading = {"w": WIDTH, "h": 1, "x": 0, "y": y}
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "gridPos": heading,
                "collapsed": False,
                "panels": [],
            }
        )
        y = _laid(row.panels, panels, y + 1)
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "current": {},
    }
    return {
        "uid": uid,
        "title": title,
        "description": text,
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
        "templating": {"list": [source, *(variable.json() for variable in variables)]},
        "panels": panels,
    }


def _laid(row: Sequence[Panel], panels: list[Json], y: int) -> int:
    """Add a row of panels from left to right, in as many lines as needed. Return the next line's
    position.
    """
    x = height = 0
    for panel in row:
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        panels.append(panel.json(len(panels) + 1, x, y))
        x, height = x + panel.width, max(height, panel.height)
    return y + height
