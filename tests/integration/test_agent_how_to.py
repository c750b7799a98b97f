from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from support.rings import logged

from moescope.core.batchlog import partition_names
from moescope.core.vocabulary import Phase, RowFlag

if TYPE_CHECKING:
    from pathlib import Path


def test_the_how_to_page_works_as_written(tmp_path: Path, repository_root: Path) -> None:
    """Its two programs, run one after the other, leave the routing of 36 tokens in a batch log."""
    page = (repository_root / "docs/how-to/record-routing.md").read_text()
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    root = tmp_path / "moescope-data" / "log"
    (node,) = partition_names(root)
    batches = [entry.batch for entry in logged(root, node)]
    tokens = [batch.tokens for batch in batches if batch.tokens is not None]
    positions = [position for each in tokens for position in each.position.tolist()]
    assert positions == list(range(4, 40))
    assert batches[0].requests.cached_tokens.tolist() == [4]
    assert batches[0].requests.phase_starts[0, Phase.DECODE] == 12
    assert tokens[-1].flags[-1] == RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK
    assert list((tmp_path / "moescope-data" / "ring").glob("*.ring")) == []
