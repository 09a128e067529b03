"""Find banned words in product code, messages and docs; check the titles of new commits.

    python deploy/lint/words.py     print each banned word with its line; fail if there is one

Invariants
- A docstring doesn't begin with a pronoun: it names the thing, or says what the function does.
- A word counts wherever people read it: identifiers (`_` parts words), strings, comments, prose.
- No file is excepted, only the phrases that `words.toml` lists with a reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
RULES: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
NOT_READ: Final = ("docs/evidence/", "docs/glossary.md", "deploy/lint/", "LICENSE")
IMAGES: Final = (".png", ".svg", ".ico", ".woff2")
GENERATED: Final = re.compile(r"_pb2(_grpc)?\.pyi?$")
WORD: Final = re.compile(
    r"(?<![a-z])(?:"
    + "|".join(re.escape(word).replace(r"\ ", r"[\s_]+") for word in RULES["words"])
    + r")(?![a-z])",
    re.IGNORECASE,
)
OPENING: Final = re.compile(rf'"""({"|".join(RULES["openings"])})\b')
ALLOWED: Final = re.compile("|".join(re.escape(phrase) for phrase in RULES["allowed"]))
TITLE: Final = re.compile(r"[a-z][a-z-]*: \S.*")
LONGEST: Final = 72


def files() -> Iterator[str]:
    """Return the files that are checked, relative to the repository."""
    for name in _git("ls-files").splitlines():
        if name.startswith(NOT_READ) or name.endswith(IMAGES) or GENERATED.search(name):
            continue
        if (ROOT / name).is_file():
            yield name


def hits(name: str) -> Iterator[tuple[int, str]]:
    """Return line numbers, from 1, and the banned words there."""
    text = ALLOWED.sub("", (ROOT / name).read_text("utf-8"))
    for found in WORD.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found.group().split())
    for found in OPENING.finditer(text) if name.endswith(".py") else ():
        yield text.count("\n", 0, found.start()) + 1, f"{found.group(1)} … (a docstring's first)"


def wrong_titles() -> Iterator[str]:
    """Return the problems of titles of commits after `titles_since`."""
    since = f"{RULES['titles_since']}^{{commit}}"
    command = ["git", "cat-file", "-e", since]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        return  # a shallow clone
    for line in _git("log", "--format=%h %s", f"{RULES['titles_since']}..HEAD").splitlines():
        commit, _, title = line.partition(" ")
        if len(title) > LONGEST:
            yield f"{commit}: the title has {len(title)} characters, at most {LONGEST}: {title}"
        elif not TITLE.fullmatch(title):
            yield f"{commit}: the title isn't `area: imperative`: {title}"
        elif found := WORD.search(title):
            yield f"{commit}: the title has the banned word {found.group()!r}: {title}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main() -> int:
    """Return the exit code: 1 if there is a problem."""
    wrong = [
        f"{name}:{line}: banned word {word!r}" for name in files() for line, word in hits(name)
    ]
    wrong += wrong_titles()
    sys.stdout.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
