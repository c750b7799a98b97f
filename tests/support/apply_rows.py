"""A process that applies a stream of emissions to a store, from where the last one stopped.

Run as a script: `apply_rows.py STORE SEED RECORDS`. Prints the offset after each commit.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from support.shared_rows import SHAPES, RowProcessor, make_records, share_finisher

from moescope.storage.store import Store

LATE_US = 200_000_000


def run(path: Path, seed: int, number: int) -> None:
    """Apply what is left, in commits of random length."""
    records = make_records(seed, number, late_us=LATE_US)
    processor = RowProcessor()
    with Store(path, share_finisher, SHAPES) as store:
        stored = store.load_progress().get("p")
        begin = stored.emitted_to if stored else 0
        if begin:
            processor.emission(records[:begin])
        chance = random.Random(begin)
        while begin < number:
            end = min(number, begin + chance.randrange(1, 4))
            store.apply(processor.emission(records[begin:end], sealed=end == number))
            begin = end
            sys.stdout.write(f"{begin}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
