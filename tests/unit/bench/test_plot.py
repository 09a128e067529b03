"""Pictures of figures: which bars there are, how long, and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.plot import LETTER, WIDTH, Group, bars, greatest_first, groups, main

LINES = [
    {"bench": "simulated", "workers": 10, "late_ms": {"p50": 25.0, "p99": 50.0}, "rate": 100},
    {"bench": "simulated", "workers": 100, "late_ms": None, "rate": 100},
    {"bench": "simulated", "workers": 1000, "late_ms": {"p50": 100.0, "p99": 200.0}, "rate": 90},
]
SVG = "{http://www.w3.org/2000/svg}"


def lengths(picture: str) -> list[float]:
    """Of all bars, from the top."""
    return [float(each.attrib["width"]) for each in marked(picture, "bar")]


def marked(picture: str, kind: str) -> list[ET.Element]:
    """Return the elements of this class."""
    return [each for each in ET.fromstring(picture).iter() if kind in classes(each)]


def classes(each: ET.Element) -> list[str]:
    return each.attrib.get("class", "").split()


def words(picture: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(picture).iter(f"{SVG}text")]


def test_a_line_is_a_group_named_by_its_differing_fields() -> None:
    made = groups(LINES, "late_ms", ["workers"])
    assert [group.name for group in made] == ["10 workers", "1,000 workers"]
    assert made[0].figures == {"p50": 25.0, "p99": 50.0}


def test_one_figure_is_one_bar_and_a_dot_selects_a_nested_value() -> None:
    assert next(group.figures for group in groups(LINES, "rate", ["bench"])) == {"rate": 100.0}
    deeper = groups(LINES, "late_ms.p99", ["bench", "workers"])
    assert deeper[1] == Group("simulated × 1,000 workers", {"late_ms.p99": 200.0})


def test_the_greatest_bar_is_the_longest_and_the_others_are_in_proportion() -> None:
    shown = bars("late", groups(LINES, "late_ms", ["workers"]))
    assert lengths(shown) == [WIDTH / 8, WIDTH / 4, WIDTH / 2, WIDTH]


def test_on_a_scale_of_powers_equal_factors_are_equal_steps_and_each_power_has_a_line() -> None:
    shown = bars("late", [Group("a", {"x": 10.0, "y": 100.0, "z": 1000.0})], log=True)
    assert lengths(shown) == pytest.approx([WIDTH / 3, WIDTH * 2 / 3, WIDTH], abs=0.1)
    assert [each.text for each in marked(shown, "power")] == ["1", "10", "100", "1,000"]


def test_bars_can_be_sorted_and_one_be_set_apart() -> None:
    some = [Group("others", {"rate": 1.0}), Group("ours", {"rate": 2.0})]
    shown = bars("rate", greatest_first(some), mark="ours")
    first, second = marked(shown, "bar")
    assert float(first.attrib["width"]) > float(second.attrib["width"])
    assert classes(first)[0] != classes(second)[0]


def test_the_range_of_a_figure_is_drawn_over_its_bar_and_fits() -> None:
    line = {"name": "a", "rate": {"median": 10, "min": 5, "max": 20}}
    [group] = groups([line], "rate.median", ["name"], ["rate.min", "rate.max"])
    assert (group.name, group.between) == ("a", (5.0, 20.0))
    shown = bars("rate", [group])
    assert lengths(shown) == [WIDTH / 2], "there is room for the most"
    [figure] = marked(shown, "figure")
    assert float(figure.attrib["x"]) > float(marked(shown, "bar")[0].attrib["x"]) + WIDTH


def test_each_bar_shows_its_figure_as_text() -> None:
    shown = words(bars("p < 1 & more", [Group("<a>", {"x": 1234.0, "y": 0.0})]))
    assert {"p < 1 & more", "<a>", "x", "y", "1,234", "0"} <= set(shown)


@pytest.mark.parametrize("name", ["a", "a name that is much longer than any bar of its group"])
def test_names_figures_and_titles_are_inside_of_the_picture(name: str) -> None:
    title = "a title that says at some length what it is that is shown here, and of when it is"
    groups_of_it = [Group(name, {"a bar of some kind": 1234567.0, "another": 1.0})]
    shown = ET.fromstring(bars(title, groups_of_it))
    for each in shown.iter(f"{SVG}text"):
        wide = len(each.text or "") * LETTER
        begins = float(each.attrib["x"]) - (wide if each.attrib.get("text-anchor") == "end" else 0)
        assert begins >= 0
        assert begins + wide <= float(shown.attrib["width"])
        assert 0 < float(each.attrib["y"]) < float(shown.attrib["height"])


def test_a_plot_with_only_draws_matching_lines(tmp_path: Path) -> None:
    file, picture = tmp_path / "lines.jsonl", tmp_path / "out.svg"
    file.write_text("\n".join(map(json.dumps, LINES)))
    said = [str(file), str(picture), "--by", "workers", "--only", "rate=90"]
    assert main(said) == 0
    assert "1,000 workers" in words(picture.read_text())
    assert "10 workers" not in words(picture.read_text())


def test_a_missing_result_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "lines.jsonl", tmp_path / "out.svg"
    file.write_text("\n".join(map(json.dumps, LINES)))
    assert main([str(file), str(picture), "--value", "nothing"]) == 1
    assert "no line has this value: --value nothing" in capsys.readouterr().err
    assert main([str(file), str(picture), "--by", "workers"]) == 0
    assert "1,000 workers" in words(picture.read_text())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "No such file"),
        ('{"bench": "a", "late_ms": 1}\nnot JSON\n', "line 2 isn't JSON"),
        ("[1]\n", "line 1 isn't an object"),
        ('{"bench": "a"}\n', "late_ms"),
    ],
)
def test_a_figure_that_cant_be_drawn_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str | None, said: str
) -> None:
    lines, picture = tmp_path / "lines.jsonl", tmp_path / "picture.svg"
    if written is not None:
        lines.write_text(written)
    assert main([str(lines), str(picture)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not picture.exists()
