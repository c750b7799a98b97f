"""The routing batch's wire format, version 1; specified in docs/reference/wire-format.md."""

from moescope.core.wire.decode import decode_batch, peek_identity
from moescope.core.wire.encode import encode_batch
from moescope.core.wire.errors import BatchDecodeError, DecodeReason
from moescope.core.wire.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "DEFAULT_LIMITS",
    "BatchDecodeError",
    "DecodeReason",
    "Limits",
    "decode_batch",
    "encode_batch",
    "peek_identity",
]
