"""Some of the recordings of examples/tiny_moe, in a folder of their own: quicker to play."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RECORDINGS = "examples/tiny_moe/recordings"
MANIFEST = "manifest.json"


def few_recordings(root: Path, folder: Path, *names: str) -> Path:
    """Copy recordings of a checkout, with a manifest of these alone."""
    manifest = json.loads((root / RECORDINGS / MANIFEST).read_text(encoding="utf-8"))
    manifest["recordings"] = {name: manifest["recordings"][name] for name in names}
    for name in names:
        shutil.copytree(root / RECORDINGS / name, folder / name)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return folder
