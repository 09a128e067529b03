"""The containers of deploy: what can be checked of them without an engine.

Daemons accept their settings, names refer to existing services, and mounted files exist. Whether
the containers start isn't tested: these tests run without an engine.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from support import fork_server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/compose"
TEXT = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
VOLUMES: dict[str, None] = yaml.safe_load(TEXT)["volumes"]
NETWORKS: dict[str, Any] = yaml.safe_load(TEXT)["networks"]
CONTAINERFILE = (ROOT / "deploy/oci/Containerfile").read_text(encoding="utf-8")
PROXY = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")
MEMBERS = ["m1", "m2", "m3"]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|[^}]*)\}")
PASSWORD = "hunter2@#:/?%"


def interpolated(text: str) -> str:
    """With each variable by its default; where there is none, it must be set: PASSWORD."""
    return VARIABLE.sub(lambda found: PASSWORD if found[2] is None else found[2], text)


def environment(service: str) -> dict[str, str]:
    """Return the environment of the container."""
    given: Mapping[str, str] = SERVICES[service].get("environment", {})
    return {name: interpolated(value) for name, value in given.items()}


def mounts() -> list[tuple[str, str]]:
    """Return each mounted path with its service."""
    return [
        (volume.split(":")[0], name)
        for name, service in SERVICES.items()
        for volume in service.get("volumes", ())
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "service"),
    [("schedd", name) for name in (*MEMBERS, "migrate")] + [("workerd",) * 2],
)
def test_a_daemon_accepts_the_settings_of_its_container(
    program: str, service: str, tmp_path: Path
) -> None:
    plain = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = SERVICES[service].get("command", [])
    checked = fork_server.run(
        [sys.executable, "-m", program, *command[1:], "--check-config"],
        env={**plain, **environment(service), "WORKERD_SPOOL": str(tmp_path)},
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert PASSWORD not in checked.stdout, "a password is masked"


def test_members_use_the_password_of_the_database_with_any_characters() -> None:
    for name in (*MEMBERS, "migrate"):
        variables = environment(name)
        assert variables["PGPASSWORD"] == PASSWORD == environment("postgres")["POSTGRES_PASSWORD"]
        url = make_url(variables["SCHEDD_POSTGRES__DSN"])
        assert (url.username, url.password, url.host) == ("schedd", None, "postgres")


def test_members_trust_only_the_proxy_which_overwrites_headers_of_clients() -> None:
    [network] = NETWORKS["default"]["ipam"]["config"]
    subnet, others = (ip_network(interpolated(network[key])) for key in ("subnet", "ip_range"))
    proxy = interpolated(SERVICES["proxy"]["networks"]["default"]["ipv4_address"])
    assert ip_address(proxy) in subnet
    assert ip_address(proxy) not in others, "no other container is given it"
    for name in MEMBERS:
        assert environment(name)["SCHEDD_LISTEN__TRUSTED_PROXIES"] == proxy
    assert "http-request set-header X-Forwarded-For %[src]" in PROXY
    assert "option forwardfor" not in PROXY, "it adds to what the client said"


@pytest.mark.slow
def test_a_variable_that_no_daemon_knows_is_reported() -> None:
    wrong = {"PATH": os.environ["PATH"], **environment("m1"), "SCHEDD_LISTEN__HTPP": "x"}
    checked = fork_server.run(
        [sys.executable, "-m", "schedd", "--check-config"],
        env=wrong | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert "SCHEDD_LISTEN__HTPP" in checked.stderr


def test_members_are_named_like_their_containers() -> None:
    for name in MEMBERS:
        variables = environment(name)
        assert variables["SCHEDD_NAME"] == name
        assert variables["SCHEDD_LISTEN__ADVERTISE_GRPC"] == f"{name}:7420"
        assert variables["SCHEDD_LISTEN__ADVERTISE_HTTP"] == f"{name}:7421"
    known = [
        one.partition(":")[0] for one in environment("workerd")["WORKERD_ENDPOINTS"].split(",")
    ]
    assert known == MEMBERS


def test_the_proxy_checks_readyz_of_all_members() -> None:
    for port in (7420, 7421):
        assert re.findall(rf"^ +server (\S+) \1:{port}$", PROXY, re.MULTILINE) == MEMBERS
        assert f"127.0.0.1:{port}:{port}" in SERVICES["proxy"]["ports"]
        assert f"bind :{port}\n" in PROXY
    assert PROXY.count("option httpchk GET /readyz") == 2
    assert "check inter 1s fall 2 rise 1 port 7421" in PROXY
    assert "option redispatch 1" in PROXY, "else who comes to one that just died waits, for a 503"


def test_prometheus_scrapes_every_member_and_worker_and_evaluates_our_rules() -> None:
    said = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    members, workers = said["scrape_configs"]
    assert members["static_configs"] == [{"targets": [f"{name}:7421" for name in MEMBERS]}]
    assert workers["dns_sd_configs"][0]["names"] == ["workerd"]
    assert said["rule_files"] == ["alerts.yml"]
    assert (
        "../prometheus/alerts.yml:/etc/prometheus/alerts.yml:ro"
        in SERVICES["prometheus"]["volumes"]
    )


def test_plaintext_ports_are_reachable_only_from_this_host() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_mounted_files_exist() -> None:
    named = {source for source, _ in mounts() if not source.startswith(".")}
    assert named == VOLUMES.keys()
    files = [source for source, _ in mounts() if source.startswith(".")]
    assert files
    assert [source for source in files if not (FOLDER / source).exists()] == []


def test_awaited_services_exist_and_have_health_checks() -> None:
    waits = [service["depends_on"] for service in SERVICES.values() if "depends_on" in service]
    assert {name for names in waits for name in names} <= SERVICES.keys()
    for names in waits:
        for name, wanted in names.items() if isinstance(names, dict) else ():
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[name]
            elif wanted["condition"] == "service_completed_successfully":
                assert SERVICES[name]["restart"] == "no", "it is to end"


def test_required_variables_are_in_the_example() -> None:
    example = (FOLDER / "example.env").read_text(encoding="utf-8")
    named = {found[1] for found in VARIABLE.finditer(TEXT)}
    assert named == set(re.findall(r"^(\w+)=", example, re.MULTILINE))
    for found in VARIABLE.finditer(TEXT):
        assert f"\n{found[1]}={found[2] or ''}\n" in example, "the default, where there is one"


def test_one_service_builds_each_image_and_the_others_wait_for_it() -> None:
    """Two that build the same tag at once collide in containerd's image store."""
    built = [(one["image"], name) for name, one in SERVICES.items() if "build" in one]
    builder = dict(built)
    assert len(builder) == len(built) == 2
    for name, service in SERVICES.items():
        if service["image"] in builder:
            ours = builder[service["image"]]
            assert service["pull_policy"] == ("build" if name == ours else "never")
            assert name == ours or ours in waited_for(name)


def waited_for(name: str) -> set[str]:
    """Return all services that start before this one."""
    direct = set(SERVICES[name].get("depends_on", ()))
    return direct.union(*(waited_for(each) for each in direct))


def test_each_foreign_image_has_one_version() -> None:
    pinned = re.compile(r"\S+:v?\d+\.\d+(\.\d+)?")
    ours = {one["image"] for one in SERVICES.values() if "build" in one}
    others = {one["image"] for one in SERVICES.values()} - ours
    assert [image for image in others if not pinned.fullmatch(image)] == []
    bases = set(re.findall(r"^FROM (\S+) AS", CONTAINERFILE, re.MULTILINE))
    assert [base for base in bases if not re.search(r":\S*\d+\.\d+\.\d+|-\d{8}-", base)] == []


def test_images_have_what_their_containers_run() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", CONTAINERFILE, re.MULTILINE))
    built = [service["build"] for service in SERVICES.values() if "build" in service]
    assert {build["target"] for build in built} == {"schedd", "etcd"} < stages
    for build in built:
        assert (FOLDER / build["context"] / build["dockerfile"]).resolve().exists()
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in ("migrate", "workerd"):
        assert SERVICES[name]["command"][0] in programs["scripts"]


def test_an_image_is_built_from_all_sources_of_the_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    for package in wheel["build"]["targets"]["wheel"]["packages"]:
        assert any(package == source or package.startswith(f"{source}/") for source in sources)
