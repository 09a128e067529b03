"""Every page there is."""

from __future__ import annotations

from typing import Final

from schedd.web.pages import overview
from schedd.web.pages.page import Page

PAGES: Final[tuple[Page, ...]] = (overview.PAGE,)
