"""Pictures of figures: which bars there are, how tall, and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.plot import HEIGHT, LETTER, Group, bars, groups, main

LINES = [
    {"bench": "simulated", "workers": 10, "late_ms": {"p50": 25.0, "p99": 50.0}, "rate": 100},
    {"bench": "simulated", "workers": 100, "late_ms": None, "rate": 100},
    {"bench": "simulated", "workers": 1000, "late_ms": {"p50": 100.0, "p99": 200.0}, "rate": 90},
]
SVG = "{http://www.w3.org/2000/svg}"


def heights(picture: str) -> list[float]:
    """Of all bars, from the left; not the background, nor the legend."""
    found = [float(each.attrib["height"]) for each in ET.fromstring(picture).iter(f"{SVG}rect")]
    return [one for one in found[1:] if one != 10.0]


def words(picture: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(picture).iter(f"{SVG}text")]


def test_a_line_is_a_group_named_by_what_it_differs_in() -> None:
    made = groups(LINES, "late_ms", ["workers"])
    assert [group.name for group in made] == ["10 workers", "1000 workers"]
    assert made[0].figures == {"p50": 25.0, "p99": 50.0}


def test_one_figure_is_one_bar_and_a_dot_goes_deeper() -> None:
    assert next(group.figures for group in groups(LINES, "rate", ["bench"])) == {"rate": 100.0}
    deeper = groups(LINES, "late_ms.p99", ["bench", "workers"])
    assert deeper[1] == Group("simulated bench × 1000 workers", {"late_ms.p99": 200.0})


def test_the_greatest_bar_is_the_tallest_and_the_others_are_in_proportion() -> None:
    shown = bars("late", groups(LINES, "late_ms", ["workers"]))
    assert heights(shown) == [HEIGHT / 8, HEIGHT / 4, HEIGHT / 2, HEIGHT]


def test_on_a_scale_of_powers_equal_factors_are_equal_steps() -> None:
    shown = bars("late", [Group("a", {"x": 10.0, "y": 100.0, "z": 1000.0})], log=True)
    assert heights(shown) == pytest.approx([HEIGHT / 3, HEIGHT * 2 / 3, HEIGHT], abs=0.1)


def test_each_bar_says_its_figure_and_what_is_said_is_text() -> None:
    shown = words(bars("p < 1 & more", [Group("<a>", {"x": 1234.0, "y": 0.0})]))
    assert {"p < 1 & more", "<a>", "x", "y", "1,234", "0"} <= set(shown)


def test_groups_whose_names_are_wider_than_their_bars_stand_apart() -> None:
    name = "a name that is much wider than one bar"
    shown = ET.fromstring(bars("late", [Group(name, {"x": 1.0}), Group(name, {"x": 2.0})]))
    first, second = (
        float(each.attrib["x"]) for each in shown.iter(f"{SVG}text") if each.text == name
    )
    assert second - first > len(name) * LETTER


def test_nothing_to_show_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "lines.jsonl", tmp_path / "out.svg"
    file.write_text("\n".join(map(json.dumps, LINES)))
    assert main([str(file), str(picture), "--value", "nothing"]) == 1
    assert "no line has such a value: nothing" in capsys.readouterr().err
    assert main([str(file), str(picture), "--by", "workers"]) == 0
    assert "1000 workers" in words(picture.read_text())
