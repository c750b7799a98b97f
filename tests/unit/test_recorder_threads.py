from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from support.rings import ids_of, small_recorder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CALLS = 50
ROWS = 4


def test_threads_lose_no_row_that_sampling_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Usual calls, which count such rows without a lock, lose none beside general ones."""
    counting = np.count_nonzero

    def count_slowly(numbers: Any) -> Any:
        time.sleep(0.001)  # the other thread's turn, while a number is being added
        return counting(numbers)

    monkeypatch.setattr(np, "count_nonzero", count_slowly)
    with small_recorder(tmp_path, fidelity="sampled", sampling_ratio=1e-9) as recorder:
        ids = ids_of(range(ROWS))
        general_calls = 0

        def call_generally() -> None:
            nonlocal general_calls
            names = [f"general-{row}" for row in range(ROWS)]
            for position in range(CALLS):
                recorder.record(names, [position] * ROWS, ids, "decode")
                general_calls += 1

        thread = threading.Thread(target=call_generally)
        thread.start()
        usual_calls = 0
        names = [f"usual-{row}" for row in range(ROWS)]
        while thread.is_alive():
            recorder.record(names, np.full(ROWS, usual_calls), ids, "decode")
            usual_calls += 1
        thread.join()
        counters = recorder.counters()
    assert counters.internal_errors == 0
    assert counters.unsampled_rows == (general_calls + usual_calls) * ROWS
