"""The containers of deploy: what can be told of them without an engine.

What they are set to is what the daemons take, what one names another has, and what is mounted is
there. That they start was not tried: there is no engine where this runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/compose"
TEXT = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
VOLUMES: dict[str, None] = yaml.safe_load(TEXT)["volumes"]
CONTAINERFILE = (ROOT / "deploy/oci/Containerfile").read_text(encoding="utf-8")
PROXY = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")
MEMBERS = ["m1", "m2", "m3"]
VARIABLE = re.compile(r"\$\{(\w+)")


def environment(service: str) -> dict[str, str]:
    """With every variable that is to be set as `hunter2`."""
    given: Mapping[str, str] = SERVICES[service].get("environment", {})
    return {name: re.sub(r"\$\{[^}]*\}", "hunter2", value) for name, value in given.items()}


def mounts() -> list[tuple[str, str]]:
    """What is mounted, and by which service."""
    return [
        (volume.split(":")[0], name)
        for name, service in SERVICES.items()
        for volume in service.get("volumes", ())
    ]


@pytest.mark.parametrize(
    ("program", "service"),
    [("schedd", name) for name in (*MEMBERS, "migrate")] + [("workerd",) * 2],
)
def test_a_daemon_takes_what_its_container_sets(program: str, service: str) -> None:
    plain = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    checked = subprocess.run(
        [sys.executable, "-m", program, "--check-config"],
        env={**plain, **environment(service)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "hunter2" not in checked.stdout, "a password is masked"


def test_a_variable_that_no_daemon_knows_would_be_told() -> None:
    wrong = {"PATH": os.environ["PATH"], **environment("m1"), "SCHEDD_LISTEN__HTPP": "x"}
    checked = subprocess.run(
        [sys.executable, "-m", "schedd", "--check-config"],
        env=wrong | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "SCHEDD_LISTEN__HTPP" in checked.stderr


def test_members_are_known_by_their_containers_names() -> None:
    for name in MEMBERS:
        told = environment(name)
        assert told["SCHEDD_NAME"] == name
        assert told["SCHEDD_LISTEN__ADVERTISE_GRPC"] == f"{name}:7420"
        assert told["SCHEDD_LISTEN__ADVERTISE_HTTP"] == f"{name}:7421"
    known = [
        one.partition(":")[0] for one in environment("workerd")["WORKERD_ENDPOINTS"].split(",")
    ]
    assert known == MEMBERS


def test_the_proxy_is_over_all_members_by_readyz() -> None:
    for port in (7420, 7421):
        assert re.findall(rf"^ +server (\S+) \1:{port}$", PROXY, re.MULTILINE) == MEMBERS
        assert f"127.0.0.1:{port}:{port}" in SERVICES["proxy"]["ports"]
        assert f"bind :{port}\n" in PROXY
    assert PROXY.count("option httpchk GET /readyz") == 2
    assert "check inter 1s fall 2 rise 1 port 7421" in PROXY


def test_prometheus_scrapes_every_member_and_worker_and_judges_our_rules() -> None:
    said = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    members, workers = said["scrape_configs"]
    assert members["static_configs"] == [{"targets": [f"{name}:7421" for name in MEMBERS]}]
    assert workers["dns_sd_configs"][0]["names"] == ["workerd"]
    assert said["rule_files"] == ["alerts.yml"]
    assert (
        "../prometheus/alerts.yml:/etc/prometheus/alerts.yml:ro"
        in SERVICES["prometheus"]["volumes"]
    )


def test_only_this_host_reaches_what_is_served_in_the_clear() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_is_mounted_is_there() -> None:
    named = {source for source, _ in mounts() if not source.startswith(".")}
    assert named == VOLUMES.keys()
    files = [source for source, _ in mounts() if source.startswith(".")]
    assert files
    assert [source for source in files if not (FOLDER / source).exists()] == []


def test_what_is_waited_for_is_a_service_and_says_how_it_is() -> None:
    waits = [service["depends_on"] for service in SERVICES.values() if "depends_on" in service]
    assert {name for names in waits for name in names} <= SERVICES.keys()
    for names in waits:
        for name, wanted in names.items() if isinstance(names, dict) else ():
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[name]
            else:
                assert SERVICES[name]["restart"] == "no", "it is to end"


def test_what_has_to_be_set_stands_in_the_example() -> None:
    example = (FOLDER / "example.env").read_text(encoding="utf-8")
    assert set(VARIABLE.findall(TEXT)) == set(re.findall(r"^(\w+)=", example, re.MULTILINE))


def test_images_have_what_their_containers_run() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", CONTAINERFILE, re.MULTILINE))
    built = [service["build"] for service in SERVICES.values() if "build" in service]
    assert {build["target"] for build in built} == {"schedd", "etcd"} < stages
    for build in built:
        assert (FOLDER / build["context"] / build["dockerfile"]).resolve().exists()
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in ("migrate", "workerd"):
        assert SERVICES[name]["command"][0] in programs["scripts"]


def test_an_image_is_made_of_all_that_the_wheel_is_made_of() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    for package in wheel["build"]["targets"]["wheel"]["packages"]:
        assert any(package == source or package.startswith(f"{source}/") for source in sources)
