"""Check what a recorder is told about its model and itself."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import numpy as np

from moescope.core.batch import SEVERAL_RANKS, DropCounters, Placement
from moescope.core.batch_checks import MAX_LABELS, BatchError, check_header
from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Fidelity
from moescope.producers.terms import OWN_LABELS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from moescope.producers.profile import Profile

_INCARNATIONS: Final = 2**64
_LARGEST_LAYER: Final = 65_535
_LONGEST_NODE: Final = 190  # a folder of the batch log is named after it
_WEIGHT_BITS: Final = (4, 8, 16)
_Member = TypeVar("_Member", bound=IntEnum)


def member(kind: type[_Member], given: _Member | str) -> _Member:
    """An enum's member, given as such or by its name in any case.

    Raises:
        SettingsError: There is no such member.
    """
    if isinstance(given, str):
        found = kind.__members__.get(given.upper())
        if found is not None:
            return found
    elif isinstance(given, kind):
        return given
    raise SettingsError(
        f"{given!r} is no {kind.__name__}.",
        next_step="Use one of: " + ", ".join(name.lower() for name in kind.__members__) + ".",
    )


def checked_profile(profile: Profile) -> Profile:
    """The profile, if every batch header made of it will be valid.

    Raises:
        SettingsError: It will not.
    """
    layers = profile.layers
    if not layers or not all(0 <= layer <= _LARGEST_LAYER for layer in layers):
        raise _wrong(f"layers is {layers}, not one or more indices from 0 to {_LARGEST_LAYER}.")
    if profile.weight_bits not in _WEIGHT_BITS:
        raise _wrong(f"weight_bits is {profile.weight_bits!r}, not one of {_WEIGHT_BITS}.")
    if profile.fidelity is Fidelity.SAMPLED and profile.sampling_ratio == 1:
        raise _wrong(
            "fidelity is sampled and sampling_ratio 1: every request would be recorded.",
            next_step="Give sampling_ratio below 1, such as 0.1, or another fidelity.",
        )
    if len(profile.labels) > MAX_LABELS - OWN_LABELS:
        raise _wrong(f"labels has over {MAX_LABELS - OWN_LABELS} entries.")
    _check(profile, None)
    if len(quote(profile.node)) > _LONGEST_NODE:
        raise _wrong(
            f"node is longer than {_LONGEST_NODE} bytes.",
            why="A folder of the batch log is named after it.",
        )
    return profile


def checked_incarnation(incarnation: int | None) -> int | None:
    """A boot id, or None for a random one.

    Raises:
        SettingsError: It is no unsigned number of 64 bits.
    """
    if incarnation is not None and not (
        isinstance(incarnation, int) and 0 <= incarnation < _INCARNATIONS
    ):
        raise _wrong(f"incarnation is {incarnation!r}, not an integer from 0 to 2⁶⁴ - 1.")
    return incarnation


def checked_placement(
    profile: Profile, rank_of_expert: ArrayLike, version: int, ranks: int | None
) -> Placement:
    """The placement of a model's experts, if a batch header can carry it.

    Args:
        profile: Of the model.
        rank_of_expert: Integers [E], for all layers, or [L, E].
        version: Of the placement.
        ranks: Their number; by default the highest one that holds an expert, plus one.

    Raises:
        SettingsError: It cannot.
    """
    table = np.asarray(rank_of_expert)
    shape = (len(profile.layers), profile.experts)
    if table.shape not in {shape, shape[1:]} or table.dtype.kind not in "iu":
        raise _wrong(f"rank_of_expert is {table.dtype} {table.shape}, not integers {shape}.")
    if int(table.min()) < 0 or int(table.max()) > SEVERAL_RANKS:
        raise _wrong("rank_of_expert has a number that is no rank.")
    if ranks is None:
        ranks = int(table.max(initial=0, where=table != SEVERAL_RANKS)) + 1
    rank_of = np.broadcast_to(table, shape).astype(np.uint16)
    placement = Placement(version=version, rank_of=rank_of, ranks=ranks)
    _check(profile, placement)
    return placement


def _check(profile: Profile, placement: Placement | None) -> None:
    header = profile.header(
        0, 0, watermark_us=0, encoded_at_us=0, drops=DropCounters(), placement=placement
    )
    try:
        check_header(header)
    except BatchError as error:
        raise _wrong(error.what.replace("header.", "")) from error


def _wrong(what: str, *, why: str = "", next_step: str = "") -> SettingsError:
    return SettingsError(
        f"The recorder's settings are wrong: {what}",
        why=why,
        next_step=next_step
        or "Describe the model as it is served; see docs/how-to/record-routing.md.",
    )
