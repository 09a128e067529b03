"""The picture of a run's life, drawn from the table in `schedd/core/runs/lifecycle.py`.

Where things stand is written here by hand, what leads where is not: a transition without a line
here, or a line without a transition, is an error. `docs/generate.py` writes lifecycle.svg from it.
"""

from schedd.core.runs.lifecycle import TERMINAL, TRANSITIONS, State

S = State
BOX = 112, 34
PLACES: dict[State, tuple[int, int]] = {
    S.SKIPPED: (90, 110),
    S.MISSED: (90, 220),
    S.COALESCED: (90, 330),
    S.PENDING: (310, 220),
    S.RUNNING: (540, 220),
    S.RETRYING: (540, 350),
    S.SUCCEEDED: (780, 110),
    S.FAILED: (780, 220),
    S.CANCELLED: (780, 350),
}
"""The middle of each state's box."""

LINES: dict[tuple[State, State], str] = {
    (S.PENDING, S.SKIPPED): "M254 210 C200 190 190 110 150 110",
    (S.PENDING, S.MISSED): "M254 220 L150 220",
    (S.PENDING, S.COALESCED): "M254 230 C200 250 190 330 150 330",
    (S.PENDING, S.RUNNING): "M366 212 L480 212",
    (S.RUNNING, S.PENDING): "M484 229 L370 229",
    (S.PENDING, S.FAILED): "M326 203 C390 20 640 20 764 199",
    (S.PENDING, S.CANCELLED): "M326 237 C370 440 640 440 764 371",
    (S.RUNNING, S.SUCCEEDED): "M596 210 C660 190 670 110 720 110",
    (S.RUNNING, S.FAILED): "M596 220 L720 220",
    (S.RUNNING, S.CANCELLED): "M596 231 C650 250 670 335 720 345",
    (S.RUNNING, S.RETRYING): "M530 237 L530 329",
    (S.RETRYING, S.RUNNING): "M550 333 L550 241",
    (S.RETRYING, S.FAILED): "M596 342 C650 330 670 240 720 230",
    (S.RETRYING, S.CANCELLED): "M596 352 L720 352",
}
"""How each transition is drawn."""

WORDS: tuple[tuple[int, int, str, str], ...] = (
    (90, 76, "middle", "never started"),
    (425, 203, "middle", "token committed"),
    (425, 247, "middle", "given back"),
    (522, 288, "end", "failed, or its worker died"),
    (559, 288, "start", "wait over"),
    (780, 76, "middle", "for good"),
)
"""x, y, anchor, text."""

STYLE = """
  .card { fill: #fbfbf9; stroke: #d8d8d2; }
  .live { fill: #e8f0fb; stroke: #3d6fb4; }
  .end { fill: #efefec; stroke: #8a8a84; }
  .SUCCEEDED { fill: #e4f3e6; stroke: #3f8f4c; }
  .FAILED { fill: #fae6e3; stroke: #b94a3b; }
  path { fill: none; stroke: #6b6b66; stroke-width: 1.4; marker-end: url(#arrow); }
  #arrow path { fill: #6b6b66; stroke: none; marker-end: none; }
  text { font: 600 13px system-ui, sans-serif; fill: #22221f; text-anchor: middle; }
  .note { font: 12px system-ui, sans-serif; fill: #5f5f5a; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1b1c1e; stroke: #3a3b3e; }
    .live { fill: #1e2c40; stroke: #6f9fe0; }
    .end { fill: #2a2b2d; stroke: #85868a; }
    .SUCCEEDED { fill: #1d3322; stroke: #64b873; }
    .FAILED { fill: #3d2320; stroke: #e07b6c; }
    path { stroke: #a5a6aa; }
    #arrow path { fill: #a5a6aa; }
    text { fill: #ececea; }
    .note { fill: #b0b1b4; }
  }
"""


def picture() -> str:
    """The SVG. Raises ValueError when the table and what is drawn here differ."""
    pairs = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    if pairs != LINES.keys() or TRANSITIONS.keys() != PLACES.keys():
        odd = pairs ^ LINES.keys() or TRANSITIONS.keys() ^ PLACES.keys()
        raise ValueError(f"the table and the picture differ: {odd}")
    return "\n".join(
        (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 870 440" role="img"',
            '     aria-label="The life of a run: states and the transitions between them">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7"',
            '  markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z"/>',
            "</marker></defs>",
            '<rect class="card" x="1" y="1" width="868" height="438" rx="10"/>',
            *(f'<path d="{LINES[pair]}"/>' for pair in sorted(LINES)),
            *(_box(state) for state in TRANSITIONS),
            *(
                f'<text class="note" x="{x}" y="{y}" style="text-anchor:{anchor}">{text}</text>'
                for x, y, anchor, text in WORDS
            ),
            "</svg>\n",
        )
    )


def listing() -> str:
    """The table as Markdown."""
    rows = []
    for before, afters in TRANSITIONS.items():
        order = [f"`{after}`" for after in TRANSITIONS if after in afters]
        rows.append(f"| `{before}` | {' '.join(order) or 'none: a final state'} |")
    return "\n".join(("| from | to |", "|---|---|", *rows))


def _box(state: State) -> str:
    (x, y), (width, height) = PLACES[state], BOX
    kind = "live" if state not in TERMINAL else f"end {state}"
    return (
        f'<rect class="{kind}" x="{x - width // 2}" y="{y - height // 2}" width="{width}"'
        f' height="{height}" rx="6"/><text x="{x}" y="{y + 5}">{state}</text>'
    )
