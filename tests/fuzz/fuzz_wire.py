"""Throw damaged batches and random bytes at the decoder, and watch time and memory.

    .venv/bin/python tests/fuzz/fuzz_wire.py --inputs 100000 --seed 1

Every input must decode to a valid batch or raise `BatchDecodeError`, without a warning, within
the memory that the limits allow and in bounded time. The exit code is 1 at the first input that
does not; the input is written beside the seed that made it, so that it can become a test.
"""

# ruff: noqa: T201 (a script prints)
from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.wire_bytes import mutated_bytes, mutated_sections, sealed  # noqa: E402 - on the path just now

from moescope.core.batch import RoutingBatch  # noqa: E402 - on the path just now
from moescope.core.wire import BatchDecodeError, Limits, decode_batch  # noqa: E402 - on the path just now

LIMITS = Limits(inflated_bytes=16 << 20, string_bytes=1 << 20)
MEMORY_BYTES = 3 * LIMITS.inflated_bytes
SECONDS = 2.0


def make_input(rng: random.Random, valid: list[bytes]) -> bytes:
    """One input: random, damaged anywhere, or damaged behind a right checksum."""
    kind = rng.randrange(4)
    if kind == 0:
        noise = rng.randbytes(rng.randrange(300))
        return sealed(b"MSRB\x01\x00" + noise) if rng.randrange(2) else noise
    data = rng.choice(valid)
    if kind == 1:
        damaged = mutated_bytes(rng, data)
        return sealed(damaged[:-4]) if rng.randrange(2) else damaged
    return mutated_sections(rng, data)


def outcome(data: bytes) -> str:
    """Decode one input and name what came of it."""
    try:
        batch = decode_batch(data, LIMITS)
    except BatchDecodeError as error:
        return error.reason.value
    if not isinstance(batch, RoutingBatch):
        message = f"decode_batch returned {type(batch).__name__}"
        raise TypeError(message)
    return "decoded"


def run(inputs: int, seed: int) -> int:
    """Try `inputs` inputs and report."""
    valid = [path.read_bytes() for path in sorted((ROOT / "tests/vectors/wire-v1").glob("*.bin"))]
    outcomes: Counter[str] = Counter()
    slowest, largest = 0.0, 0
    tracemalloc.start()
    for number in range(inputs):
        data = make_input(random.Random(f"{seed}/{number}"), valid)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        started = time.perf_counter()
        fault = ""
        try:
            outcomes[outcome(data)] += 1
        except Exception as error:  # noqa: BLE001 - whatever it raises is a fault
            fault = f"raised {error!r}"
        took = time.perf_counter() - started
        used = tracemalloc.get_traced_memory()[1] - before
        slowest, largest = max(slowest, took), max(largest, used)
        if took > SECONDS or used > MEMORY_BYTES:
            fault = fault or f"took {took:.2f} s and {used} bytes"
        if fault:
            path = Path(f"fuzz-wire-{seed}-{number}.bin")
            path.write_bytes(data)
            print(f"input {number} of seed {seed}, kept as {path}: {fault}")
            return 1
    counts = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    print(f"{inputs} inputs of seed {seed}: {counts}")
    print(f"slowest {slowest * 1e3:.1f} ms, largest {largest / 2**20:.1f} MiB")
    return 0


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    return run(arguments.inputs, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
