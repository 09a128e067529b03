"""Each page as a picture, into docs/images/pages: on a desk and on a phone, in light and in dark.

make pictures     a cluster is started, has jobs for half a minute, and is taken down
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import ViewportSize

from faces.pages import jobs
from faces.pages.browser import chromium, watched
from faces.pages.test_pages import ADDRESSES, SIGHTS, wait_until_stable
from support.cluster import DevCluster, dev_cluster
from support.wait import wait_until

WHERE: Final = Path(__file__).parents[3] / "docs" / "images" / "pages"
DESK: Final[ViewportSize] = {"width": 1120, "height": 700}
"""Large enough to be seen, small enough to be kept."""
ENOUGH: Final = 60
"""Runs that fill the overview's strip."""


def take(cluster: DevCluster, where: Path = WHERE) -> None:
    """Take one picture of each page and sight."""
    address = f"http://{cluster.record['members'][0]['http']}"
    where.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, path in ADDRESSES.items():
            for sight, (size, dark) in SIGHTS.items():
                seen = DESK if sight.startswith("desktop") else size
                with watched(browser, address, size=seen, dark=dark) as web:
                    page = web.open(path(cluster))
                    wait_until_stable(page)
                    page.screenshot(path=where / f"{name}-{sight}.png", animations="disabled")


def main() -> None:
    """Start a cluster, let it live for a while, and take them all."""
    with dev_cluster(members=3, workers=2, slots=8) as cluster:
        jobs.apply(cluster)
        wait_until(
            lambda: len(cluster.json("run", "list", "--limit", str(ENOUGH))) == ENOUGH, 120, "runs"
        )
        take(cluster)


if __name__ == "__main__":
    sys.exit(main())
