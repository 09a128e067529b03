"""The SDK as a package: light, typed, with all its names exported."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import schedclient

OURS = {"schedclient", "schedkit", "schedproto"}
ALLOWED = {"grpc", "google"}
BROUGHT_BY_GRPC = {"typing_extensions", "cython_runtime", "grpc_health", "grpc_reflection"}
"""The dependency, its runtime, and siblings that it imports if they are installed."""

LOADED = """
import json, sys, sysconfig
before = set(sys.modules)
from schedclient import *
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(roots - set(sys.stdlib_module_names))))
"""

HANDLING = """
import json, sys
import workerd.executors.handlers.handler_process
from schedclient import Context, DontRetry, RetryAfter, handler
heavy = ("grpc", "google", "schedproto", "schedclient.client")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def test_an_import_of_schedclient_loads_only_its_three_dependencies():
    ended = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    roots = {name for name in json.loads(ended.stdout) if not name.startswith("_")}
    assert roots <= OURS | ALLOWED | BROUGHT_BY_GRPC, roots


def test_sources_of_schedclient_import_only_its_dependencies():
    folder = Path(schedclient.__file__).parent
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                root = name.partition(".")[0]
                assert root in OURS | ALLOWED | set(sys.stdlib_module_names), f"{file}: {name}"


def test_every_exported_name_is_there_and_nothing_else_is_public():
    exported = set(schedclient.__all__)
    assert all(hasattr(schedclient, name) for name in exported)
    here = {
        name
        for name, value in vars(schedclient).items()
        if not name.startswith("_") and getattr(value, "__module__", "").split(".")[0] in OURS
    }
    assert here <= exported
    assert sorted(schedclient.__all__) == sorted(set(schedclient.__all__))


def test_type_checkers_see_the_names_that_are_loaded():
    source = ast.parse(Path(schedclient.__file__).read_text())
    declared = {
        (alias.name, node.module)
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sched")
        for alias in node.names
    }
    assert {name for name, _ in declared} == set(schedclient.__all__)
    assert declared == set(vars(schedclient)["_HOMES"].items())
    for name, home in declared:
        assert getattr(schedclient, name) is getattr(importlib.import_module(home or ""), name)


def test_a_missing_name_raises_as_in_any_module():
    with pytest.raises(AttributeError, match="'schedclient' has no attribute 'Clinet'"):
        _ = schedclient.Clinet  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Clinet'"):
        exec("from schedclient import Clinet")
    assert set(schedclient.__all__) <= set(dir(schedclient))


def test_a_handlers_process_loads_no_client():
    ended = subprocess.run(
        [sys.executable, "-c", HANDLING], capture_output=True, text=True, check=True
    )
    assert json.loads(ended.stdout) == []


def test_the_package_is_marked_as_typed():
    assert (Path(schedclient.__file__).parent / "py.typed").exists()
