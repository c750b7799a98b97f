"""Environment variables that look like a setting's and are none: a slip that nothing else tells."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from moescope.core.settings import ENVIRONMENT_PREFIX, SETTINGS
from moescope.producers.recording.switch import DISABLE_VARIABLE
from moescope.producers.vllm_plugin.settings import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OTHER_VARIABLES: Final = frozenset({"MOESCOPE_CONFIG", DISABLE_VARIABLE, "MOESCOPE_TRACEBACK"})
"""Variables of moescope that are no settings."""

_CLOSE: Final = 0.7


def misspelt_variables(environment: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Environment variables that look like a setting's, and the one that was probably meant.

    Engine and server may share an environment: the settings of both are known to both.

    Args:
        environment: Names of variables.
    """
    known = {setting.variable for setting in SETTINGS} | {each.name for each in VARIABLES}
    # Without the prefix, which would make short names look alike.
    words = [name.removeprefix(ENVIRONMENT_PREFIX) for name in sorted(known | OTHER_VARIABLES)]
    for name in sorted(set(environment) - known - OTHER_VARIABLES):
        if name.startswith(ENVIRONMENT_PREFIX):
            word = name.removeprefix(ENVIRONMENT_PREFIX)
            for meant in get_close_matches(word, words, n=1, cutoff=_CLOSE):
                yield name, ENVIRONMENT_PREFIX + meant
