"""The stylesheet's colours: words can be read on whatever they stand on, in light and in dark."""

from __future__ import annotations

import re

import pytest

from schedd.web import formatting
from schedd.web.templating import STATIC

LEAST = 4.5
"""The contrast that WCAG 2 requires for words of this size."""

WORDS = (
    "ink",
    "soft",
    "faint",
    "accent",
    *sorted({look.style for look in formatting.LOOKS.values()}),
)
GROUNDS = ("paper", "card", "track", "good", "wary", "bad")


def colours(*, dark: bool) -> dict[str, str]:
    """Name → #rrggbb."""
    light, night = (STATIC / "schedd.css").read_text().split("(prefers-color-scheme: dark)", 1)
    of = night.split("* {", 1)[0] if dark else light
    found = dict(re.findall(r"--([\w-]+): #([0-9a-f]+)", of))
    return {
        name: text if len(text) == 6 else "".join(2 * one for one in text)
        for name, text in found.items()
    }


def luminance(colour: str) -> float:
    """Relative, 0 to 1 (WCAG 2)."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """1 to 21 (WCAG 2)."""
    less, more = sorted((luminance(one), luminance(other)))
    return (more + 0.05) / (less + 0.05)


def test_black_on_white_is_the_greatest_contrast() -> None:
    assert round(contrast("000000", "ffffff"), 1) == 21.0


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_color_is_readable_on_every_background(dark: bool) -> None:
    has = colours(dark=dark)
    assert set(WORDS) | set(GROUNDS) <= has.keys()
    faint = {
        f"{word} on {ground}: {found:.2f}"
        for word in WORDS
        for ground in GROUNDS
        if (found := contrast(has[word], has[ground])) < LEAST
    }
    assert faint == set()
