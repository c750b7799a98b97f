"""Check what a recorder is told about its model and itself."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeVar

from moescope.core.errors import SettingsError
from moescope.core.vocabulary import MAX_EXPERTS, Fidelity

if TYPE_CHECKING:
    from moescope.producers.profile import Profile

_LARGEST_LAYER: Final = 65_535
_LARGEST_TOP_K: Final = 255
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
    for is_wrong, what in (
        (not layers, "layers is empty."),
        (
            any(not 0 <= layer <= _LARGEST_LAYER for layer in layers),
            f"layers has an index outside of 0 … {_LARGEST_LAYER}.",
        ),
        (list(layers) != sorted(set(layers)), "layers is not strictly ascending."),
        (not _is_int(profile.experts, 1, MAX_EXPERTS), f"experts is {profile.experts!r}."),
        (
            not _is_int(profile.top_k, 1, min(_LARGEST_TOP_K, profile.experts)),
            f"top_k is {profile.top_k!r}.",
        ),
        (profile.weight_bits not in _WEIGHT_BITS, f"weight_bits is {profile.weight_bits!r}."),
        (
            not 0 < profile.sampling_ratio <= 1,
            f"sampling_ratio is {profile.sampling_ratio!r}, not in (0, 1].",
        ),
        (
            profile.sampling_ratio < 1 and profile.fidelity is not Fidelity.SAMPLED,
            "sampling_ratio is below 1 although fidelity is not sampled.",
        ),
    ):
        if is_wrong:
            raise SettingsError(
                f"The recorder's settings are wrong: {what}",
                next_step="Describe the model as it is served; see docs/how-to/record-routing.md.",
            )
    return profile


def _is_int(value: object, smallest: int, largest: int) -> bool:
    return isinstance(value, int) and smallest <= value <= largest
