"""The closed sets of words that batches, windows, tables and documents share.

Integer values are part of the wire format and of stored rows: they are never reused.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, StrEnum


class Phase(IntEnum):
    """What the engine was doing with a token."""

    PREFILL = 0
    DECODE = 1
    EVAL = 2
    TRAIN = 3
    WARMUP = 4
    DRAFT = 5


HEALTH_PHASES = frozenset({Phase.PREFILL, Phase.DECODE, Phase.EVAL, Phase.TRAIN})
"""Warm-up and draft tokens are executed load but say nothing about routing health."""


class Origin(IntEnum):
    """Which of the two logs of one fact: the router's choice or the engine's execution."""

    MODEL = 0
    FRAMEWORK = 1


class IdSpace(IntEnum):
    """Whether expert ids name logical experts or physical (replicated) ones."""

    LOGICAL = 0
    PHYSICAL = 1


class RankOrder(IntEnum):
    """What the order of a row's expert ids meant when it was recorded."""

    UNKNOWN = 0
    SELECTION_SCORE = 1
    WEIGHT = 2


class ScoreKind(IntEnum):
    """The router's scoring family, which decides what entropy and margin mean."""

    UNKNOWN = 0
    SOFTMAX = 1
    SIGMOID = 2
    GROUPED = 3
    TOPK_SOFTMAX = 4
    SPARSEMIXER = 5


class Fidelity(IntEnum):
    """How much of its routing a producer ships."""

    FULL = 0
    SAMPLED = 1
    COUNTS = 2


class TokenIdKind(IntEnum):
    """What the optional token id column holds."""

    OFF = 0
    KEYED_HASH = 1
    PLAIN = 2


class RowFlag(IntFlag):
    """Per-token flags of a routing batch."""

    NONE = 0
    CONTEXT = 1
    PADDING = 2
    RECOMPUTED = 4
    LAST_OF_REQUEST = 8
    LAST_OF_TASK = 16


UNCOUNTED_FLAGS = RowFlag.CONTEXT | RowFlag.PADDING | RowFlag.RECOMPUTED
"""A row with any of these is never counted in a window."""


class WindowKind(StrEnum):
    """The four kinds of window."""

    TOKEN = "token"
    TIME = "time"
    TASK = "task"
    STEP = "step"

    __hash__ = str.__hash__
    """Part of many keys; that of `Enum` is Python."""


class ScopeKind(StrEnum):
    """What part of the fleet a shared window covers."""

    ALL = "all"
    NODE = "node"
    SCENE = "scene"

    __hash__ = str.__hash__
    """As of `WindowKind`."""


class CloseReason(StrEnum):
    """Why a window closed."""

    COMPLETE = "complete"
    POSITION_BEYOND = "position_beyond"
    PHASE_END = "phase_end"
    REQUEST_END = "request_end"
    SILENCE = "silence"
    AGE = "age"
    WATERMARK = "watermark"
    TASK_END = "task_end"
    ROLL_OVER = "roll_over"
    STEP_PASSED = "step_passed"
    SEALED = "sealed"


class Level(StrEnum):
    """A closed window's verdict."""

    HEALTHY = "healthy"
    WARN = "warn"
    RED = "red"
    INSUFFICIENT = "insufficient"


MAX_EXPERTS = 65_535
MAX_SCENES = 64
OTHER_SCENE = "other"
UNKNOWN_SCENE = "unknown"
