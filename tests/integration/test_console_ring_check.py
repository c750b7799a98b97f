from __future__ import annotations

from typing import TYPE_CHECKING

from support.command_line import moescope
from support.rings import ids_of, small_recorder

from moescope.producers.ring.layout import State

if TYPE_CHECKING:
    from pathlib import Path


def test_doctor_notices_that_no_engine_records(tmp_path: Path) -> None:
    """A plugin that did not attach leaves an empty folder: that is not simply `ok`."""
    rings = tmp_path / "data" / "ring"
    rings.mkdir(parents=True)
    told = moescope("doctor", "--data", "data", folder=tmp_path).stdout.splitlines()
    (number,) = [number for number, line in enumerate(told) if " rings: " in line]
    assert told[number].startswith("warn  rings: no engine has a ring in ")
    assert "its log says why" in told[number + 1]
    with small_recorder(rings):
        told = moescope("doctor", "--data", "data", folder=tmp_path).stdout.splitlines()
    (line,) = [line for line in told if " rings: " in line]
    assert line.startswith("ok    rings: 1 in ")


def test_doctor_opens_the_rings(tmp_path: Path) -> None:
    """A file that no agent can ship is told with what, why and what to do; a sound one counts."""
    rings = tmp_path / "data" / "ring"
    with small_recorder(rings) as recorder:
        recorder.record("a", [0, 1], ids_of([0, 1]), "decode")
        (sound,) = rings.glob("*.ring")
        before = sound.read_bytes()
        noise = rings / "ring-0000000000000001.ring"
        noise.write_bytes(bytes(range(1, 251)) * 280)
        damaged = rings / "ring-0000000000000002.ring"
        damaged.write_bytes(before)
        with damaged.open("r+b") as file:
            file.seek(State.REJECTED * 8)
            file.write(b"\xff" * 8)
        aside = rings / "ring-0000000000000003.ring.damaged"
        aside.touch()
        told = moescope("doctor", "--data", "data", folder=tmp_path, expect=1).stdout
        assert sound.read_bytes() == before
    lines = [line for line in told.splitlines() if " rings: " in line]
    failures = [line for line in lines if line.startswith("FAIL ")]
    assert [path.name in line for path, line in zip((noise, damaged), failures, strict=True)]
    assert "It does not begin like a ring." in failures[0]
    assert "the number of rejected rows is 18446744073709551615" in failures[1]
    assert "Restart the engine that writes it" in told
    (warning,) = [line for line in lines if line.startswith("warn ")]
    assert f"{aside.name} aside" in warning
    (sound_line,) = [line for line in lines if line.startswith("ok ")]
    assert sound_line.startswith("ok    rings: 1 in ")


def test_doctor_tells_that_the_kill_switch_is_on(tmp_path: Path) -> None:
    """A forgotten file `disable` is why no row comes: it is named, and what ends it."""
    rings = tmp_path / "data" / "ring"
    with small_recorder(rings):
        (rings / "disable").touch()
        told = moescope("doctor", "--data", "data", folder=tmp_path).stdout.splitlines()
    (number,) = [number for number, line in enumerate(told) if "switched off" in line]
    assert told[number].startswith("warn  rings: recording is switched off by the file ")
    assert told[number].endswith("data/ring/disable")
    assert "Remove it" in told[number + 1]
