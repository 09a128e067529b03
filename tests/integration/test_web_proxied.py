"""A member's HTTP as a proxy reaches it: by another name, for others."""

from __future__ import annotations

from schedd.web.guard import Reach
from schedkit.net.proxies import Proxies
from support.web import served

ETL = {"name": "etl", "cron": "0 2 * * *", "shell": {"argv": ["true"]}}


async def test_a_configured_host_name_is_accepted(dsn: str) -> None:
    async with served(dsn, reach=Reach(names=["Schedd.example.com"])) as web:
        for host in ("schedd.example.com", "SCHEDD.example.com:443"):
            assert (await web.ask("GET", "/api/v1/jobs", headers={"Host": host})).status == 200
        other = await web.ask("GET", "/api/v1/jobs", headers={"Host": "example.com"})
        assert (other.status, other.json["reason"]) == (403, "UNKNOWN_HOST")
        assert "listen.host_names" in other.json["remedy"]


async def test_the_audit_has_the_client_that_a_trusted_proxy_saw(dsn: str) -> None:
    forwarded = {"X-Forwarded-For": "127.0.0.1, 203.0.113.9"}
    local = Reach(Proxies.from_texts(["127.0.0.1"]))
    for reach, source in ((local, "203.0.113.9"), (Reach(), "127.0.0.1")):
        async with served(dsn, reach=reach) as web:
            await web.post("/api/v1/jobs", ETL)
            await web.ask("DELETE", "/api/v1/jobs/etl", headers=forwarded)
            entries = (await web.get("/api/v1/audit?action=delete")).json["entries"]
            assert entries[0]["source"].startswith(f"http:{source}:")
