"""The repository itself, for tests of what is no installed package: documents and the demo."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "deploy" / "demo"


def module_of(folder: Path, name: str) -> ModuleType:
    """Import a module that lies in `folder`, and is found nowhere else."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
