"""One expression with `H` for its minute, and back to plain numbers."""

from schedd.core.cron import CronError, parse
from schedd.core.cron.dialect import MACROS, is_hashed


def spread(expression: str) -> str | None:
    """The expression with `H` for its minute: `0 * * * *` is `H * * * *`, `*/5 …` is `H/5 …`.

    None where the minute is no single one and no even step, or an `H` already.
    """
    if is_hashed(expression):
        return None
    try:
        masks = parse(expression, seed="").masks
    except CronError:
        return None
    if masks is None:
        return None
    words = expression.split()
    prefix = [words.pop(0)] if words[0].upper().startswith("CRON_TZ=") else []
    words = MACROS.get(words[0].lower(), " ".join(words)).split()
    minutes = [value for value in range(60) if masks.minute >> value & 1]
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 60
    if step == 1 or minutes != list(range(minutes[0], 60, step)) or 60 % step:
        return None
    words[-5] = "H" if step == 60 else f"H/{step}"
    return " ".join((*prefix, *words))


def fixed(expression: str, seed: str) -> str:
    """The expression with the minutes that its `H` stands for: what any cron reads."""
    masks = parse(expression, seed=seed).masks
    assert masks is not None, "an H stands in a calendar expression"
    minutes = [value for value in range(60) if masks.minute >> value & 1]
    words = expression.split()
    step = minutes[1] - minutes[0] if len(minutes) > 1 else 0
    if not step:
        words[-5] = str(minutes[0])
    elif len(minutes) < 5:
        words[-5] = ",".join(map(str, minutes))
    else:
        words[-5] = f"{minutes[0]}-{minutes[-1]}/{step}"
    return " ".join(words)
