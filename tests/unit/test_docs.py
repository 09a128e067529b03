"""The pages agree with the code."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import schedd.config.member_config
import workerd.config
from schedd.core.runs.lifecycle import TRANSITIONS
from support.repository import ROOT, module_of
from workerd.executors.shell import DEFAULT_INTERPRETER

DOCS = ROOT / "docs"
LAB = DOCS / "evidence"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if LAB not in page.parents),
    ROOT / "tests" / "protocol-rules.md",
]

generate = module_of(DOCS, "generate")
lifecycle = module_of(DOCS / "images", "lifecycle")
packages = module_of(DOCS / "images", "packages")


def test_generated_parts_of_pages_match_the_code() -> None:
    for path, wanted in generate.made().items():
        found = path.read_text(encoding="utf-8")
        assert found == wanted, f"{path.name}: run .venv/bin/python docs/generate.py"


def test_the_diagram_of_run_states_has_each_transition_and_no_other() -> None:
    assert set(lifecycle.LINES) == {(a, b) for a, afters in TRANSITIONS.items() for b in afters}


def test_a_transition_without_a_line_in_the_picture_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(lifecycle.LINES, next(iter(lifecycle.LINES)))
    with pytest.raises(ValueError, match="differ"):
        lifecycle.picture()


def test_the_package_diagram_omits_indirect_imports() -> None:
    imports = {"app": {"api", "core"}, "api": {"core"}, "core": set[str]()}
    assert packages.drawn(imports) == {"app": {"api"}, "api": {"core"}, "core": set()}


def test_packages_that_import_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="a → b → a"):
        packages.drawn({"a": {"b"}, "b": {"a"}})


@pytest.mark.parametrize(
    ("daemon", "config"),
    [("schedd", schedd.config.member_config.Config), ("workerd", workerd.config.WorkerConfig)],
)
def test_operations_lists_every_setting_of_a_daemon_and_no_other(daemon: str, config: type) -> None:
    page = DOCS / "operations" / f"configuration-{daemon}.md"
    section = page.read_text(encoding="utf-8").split("\n## Settings\n")[1].split("\nFlags:")[0]
    listed = [
        key
        for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        for key in re.findall(r"`(.+?)`", row)
    ]
    assert sorted(listed) == sorted(_keys(config))


def test_the_page_on_actions_names_the_interpreter_of_scripts_that_name_none() -> None:
    page = " ".join((DOCS / "semantics" / "actions.md").read_text(encoding="utf-8").split())
    [program] = DEFAULT_INTERPRETER
    assert f"Without a `#!` line, `{program}` is used." in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in _anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for named in re.findall(
        r"`((?:schedd|workerd|client|proto|docs|tests|deploy)/[\w./-]*)`", text
    ):
        assert (ROOT / named).exists(), f"{page.name} names {named}"


@pytest.mark.parametrize("product", ["schedd", "workerd", "client"])
def test_each_module_that_code_names_is_there(product: str) -> None:
    lost = []
    for module in sorted((ROOT / product).rglob("*.py")):
        for named in re.findall(
            r"`((?:[a-z_]+/)+[a-z_]+)(?:\.py)?(?:\.[A-Z]\w*)?`", module.read_text(encoding="utf-8")
        ):
            places = [folder / named for folder in (*module.parents, ROOT / "client")]
            there = any(one.is_dir() or one.with_suffix(".py").is_file() for one in places)
            if not there and named != "namespace/name":
                lost.append(f"{module.relative_to(ROOT)} names {named}")
    assert not lost


def _keys(config: type) -> Iterator[str]:
    hints: dict[str, Any] = get_type_hints(config)
    for field in dataclasses.fields(config):
        kinds = [hints[field.name], *get_args(hints[field.name])]
        nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        if nested is None:
            yield field.name
        else:
            yield from (f"{field.name}.{key.name}" for key in dataclasses.fields(nested))


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


TABLE_ROW = re.compile(r"^\| ([PMW]\d+(?:\.\d+)?) \|(.*)\|$", re.MULTILINE)
RULES = [
    rule for rule, _ in TABLE_ROW.findall((DOCS / "protocol-rules.md").read_text(encoding="utf-8"))
]
TESTS_OF_RULES = (ROOT / "tests" / "protocol-rules.md").read_text(encoding="utf-8")
ROWS = TABLE_ROW.findall(TESTS_OF_RULES)
TESTS = {file: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "row"), ROWS, ids=[rule for rule, _ in ROWS])
def test_each_test_that_a_protocol_rule_lists_names_the_rule(
    written: dict[str, str], rule: str, row: str
) -> None:
    listed = re.findall(r"`(test_\w+)`", row)
    silent = [name for name in listed if not re.search(rf"\b{rule}\b", written[name])]
    assert silent == [], f"neither their docstrings nor their comments name {rule}"


def test_each_test_that_the_protocols_rules_name_exists(written: dict[str, str]) -> None:
    assert set(re.findall(r"`(test_\w+)`", TESTS_OF_RULES)) <= set(written)


def test_each_rule_that_a_test_names_is_one_of_the_protocols() -> None:
    named = {
        rule
        for text in TESTS.values()
        for rule in re.findall(r"\bP\d\.\d+|(?<=\"\"\")[MW]\d+\b", text)
    }
    lost = sorted(named - set(RULES))
    assert not lost, f"not in docs/protocol-rules.md: {lost}"


def test_each_rule_of_the_page_has_a_test() -> None:
    assert [rule for rule, row in ROWS if "`test_" not in row] == []
    assert [rule for rule, _ in ROWS] == RULES


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The source of each test that the rules list, by its name."""
    found: dict[str, str] = {}
    listed = set(re.findall(r"`(test_\w+)`", TESTS_OF_RULES))
    for text in TESTS.values():
        if listed.isdisjoint(re.findall(r"def (test_\w+)", text)):
            continue  # parsing all files takes 3 s
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                found[node.name] = found.get(node.name, "") + own
    return found
