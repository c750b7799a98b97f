"""The adapter: takes responses, hands rows to a recorder, and never gets in the client's way."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import Counter, OrderedDict
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import SettingsError
from moescope.core.printable import printable
from moescope.core.vocabulary import UNKNOWN_SCENE
from moescope.producers.importers import sglang_responses, vllm_responses
from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_values import parse_object
from moescope.producers.returned_routes.counters import ReturnedRoutesCounters
from moescope.producers.returned_routes.rows import moe_layers_of, seen_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import ArrayLike

    from moescope.producers.importers.sequences import Sequence
    from moescope.producers.recorder import Recorder

CONVERSATIONS_REMEMBERED: Final = 65_536
RESPONSES_REMEMBERED: Final = 65_536
"""About 10 MB."""
_REASONS_SAID: Final = 32
_LONGEST_REASON: Final = 500
_log = logging.getLogger("moescope.producers")


class ReturnedRoutes:
    """Records the routes that engines return with their responses.

    For engines into which no plugin can be loaded. The constructor checks its arguments and may
    raise; no other method ever does: what cannot be recorded is counted, and why is said once in
    the logger `moescope.producers`. Methods may be called from several threads.

    Args:
        recorder: Takes the rows; its layers, experts and top-k are the model's.
        moe_layers: Decoder-layer indices of the MoE layers: those of the recorder, by default.
        hidden_layers: All decoder layers of the model, dense ones included. Needed for SGLang,
            whose routes have no header; for vLLM it is checked.

    Raises:
        SettingsError: Other layers than the recorder's, or fewer hidden layers than those.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        moe_layers: Iterable[int] | None = None,
        hidden_layers: int | None = None,
    ) -> None:
        profile = recorder.profile
        given = profile.layers if moe_layers is None else tuple(moe_layers)
        if given != profile.layers:
            raise SettingsError(
                "Returned routes and their recorder have different MoE layers.",
                why=f"{given[:8]} and {profile.layers[:8]}.",
                next_step="Create the recorder with layers=moe_layers.",
            )
        if hidden_layers is not None and hidden_layers <= profile.layers[-1]:
            raise SettingsError(
                f"A model of {hidden_layers} decoder layers has no layer {profile.layers[-1]}.",
                next_step="Give num_hidden_layers of the model's config as hidden_layers.",
            )
        self._recorder = recorder
        self._layers = profile.layers
        self._experts = profile.experts
        self._top_k = profile.top_k
        self._hidden_layers = hidden_layers
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: set[str] = set()
        self._recorded_below: OrderedDict[str, int] = OrderedDict()
        self._handed_over: OrderedDict[bytes, None] = OrderedDict()
        self._names = map(f"returned-{os.urandom(4).hex()}-{{}}".format, itertools.count(1))

    def record_vllm(
        self,
        response: object,
        *,
        task: str | None = None,
        scene: str = UNKNOWN_SCENE,
        conversation: str | None = None,
        last_of_task: bool = False,
        event_time_us: int | None = None,
    ) -> int:
        """Record the routes of a response of vLLM's OpenAI-compatible server.

        Args:
            response: The whole response: a dictionary, its JSON text, or a client library's
                object with `model_dump`.
            task: What the request belongs to; by default itself.
            scene: Traffic class.
            conversation: Of which this is a turn. Engines return the routes of the whole prefix
                with each turn; positions that an earlier turn recorded are left out.
            last_of_task: Whether the task is over.
            event_time_us: When the tokens were computed; now by default.

        Returns:
            Rows handed to the recorder.
        """
        take_apart = partial(vllm_responses.sequences_of, experts=self._experts)
        return self._record(
            response, take_apart, task, scene, conversation,
            last_of_task=last_of_task, event_time_us=event_time_us,
        )  # fmt: skip

    def record_sglang(
        self,
        response: object,
        *,
        prompt_tokens: int | None = None,
        task: str | None = None,
        scene: str = UNKNOWN_SCENE,
        conversation: str | None = None,
        last_of_task: bool = False,
        event_time_us: int | None = None,
    ) -> int:
        """Record the routes of a response of SGLang's native or OpenAI-compatible server.

        Args:
            response: The whole response, as for `record_vllm`; a list is a batch of such responses.
            prompt_tokens: Length of the prompt, where the response does not say.
            task: What the request belongs to; by default itself.
            scene: Traffic class.
            conversation: Of which this is a turn.
            last_of_task: Whether the task is over.
            event_time_us: When the tokens were computed; now by default.

        Returns:
            Rows handed to the recorder.
        """
        responses: tuple[object, ...] = (response,)
        if isinstance(response, list):
            responses = tuple(list.__iter__(response))  # a list in it is no response
        take_apart = partial(self._of_sglang, prompt_tokens)
        return sum(
            self._record(
                one, take_apart, task, scene, conversation,
                last_of_task=last_of_task, event_time_us=event_time_us,
            )
            for one in responses
        )  # fmt: skip

    def counters(self) -> ReturnedRoutesCounters:
        """What was recorded and what was not."""
        with self._lock:
            return ReturnedRoutesCounters(**self._counts)

    def _of_sglang(
        self, prompt_tokens: int | None, response: dict[str, Any], name: str
    ) -> Iterator[Sequence]:
        if self._hidden_layers is None:
            raise RejectedLineError("SGLang's routes need hidden_layers: they have no header")
        return sglang_responses.sequences_of(
            response, name, hidden_layers=self._hidden_layers, top_k=self._top_k,
            experts=self._experts, prompt_tokens=prompt_tokens,
        )  # fmt: skip

    def _record(
        self,
        response: object,
        take_apart: Callable[[dict[str, Any], str], Iterator[Sequence]],
        task: str | None,
        scene: str,
        conversation: str | None,
        *,
        last_of_task: bool,
        event_time_us: int | None,
    ) -> int:
        rows = 0
        try:
            sequences = self._sequences(response, take_apart)
            if sequences is None:
                return 0
            if conversation is not None and not isinstance(conversation, str):
                self._say_once("a conversation that is no text: this is taken for one of its own")
                conversation = None
            below = self._recorded(conversation)
            for sequence in sequences:
                rows += self._hand_over(
                    sequence, below, task, scene, last_of_task=last_of_task, time_us=event_time_us
                )
            self._remember(conversation, sequences)
            self._count(responses=1)
        except Exception as error:  # noqa: BLE001 - the client comes first
            self._count(internal_errors=1)
            self._say_once(f"internal error, {_described(error)}")
        return rows

    def _sequences(
        self, response: object, take_apart: Callable[[dict[str, Any], str], Iterator[Sequence]]
    ) -> list[Sequence] | None:
        """A response taken apart; None, and counted, if it cannot be used."""
        content: dict[str, Any] | None = None
        try:
            content = _as_object(response)
            return list(take_apart(content, next(self._names)))
        except RejectedLineError as error:
            self._refuse(error, 0 if content is None else _computed_tokens(content))
            return None

    def _hand_over(
        self,
        sequence: Sequence,
        recorded_below: int,
        task: str | None,
        scene: str,
        *,
        last_of_task: bool,
        time_us: int | None,
    ) -> int:
        if self._was_handed_over(sequence):
            self._count(repeated_rows=len(sequence.routes))
            return 0
        try:
            ids = moe_layers_of(sequence, self._layers, self._top_k, self._hidden_layers)
        except RejectedLineError as error:
            self._refuse(error, len(sequence.routes))
            return 0
        rows = seen_rows(sequence, ids, recorded_below)
        for reason, count in rows.missed.items():
            self._miss(count, reason)
        self._count(
            cached_rows=rows.cached, repeated_rows=rows.repeated, surplus_rows=sequence.surplus_rows
        )
        if not len(rows.positions):
            return 0
        request = sequence.request
        times: dict[str, ArrayLike] = {} if time_us is None else {"event_time_us": time_us}
        self._recorder.begin_request(
            request,
            prompt_tokens=sequence.prompt_tokens if sequence.prompt_tokens >= 0 else None,
            cached_tokens=max(sequence.cached_tokens, recorded_below),
            task=task,
            scene=scene,
        )
        self._recorder.record(request, rows.positions, rows.ids, rows.phases, **times)
        self._recorder.end_request(request, last_of_task=last_of_task or task is None)
        self._count(handed_over_rows=len(rows.positions))
        return len(rows.positions)

    def _was_handed_over(self, sequence: Sequence) -> bool:
        """Whether the same rows of the same request came before: a response given twice."""
        digest = blake2b(sequence.request.encode(), digest_size=16)
        digest.update(f"\0{sequence.first_position} {sequence.routes.shape}".encode())
        digest.update(sequence.routes.tobytes())
        key = digest.digest()
        with self._lock:
            is_known = key in self._handed_over
            self._handed_over[key] = None
            self._handed_over.move_to_end(key)
            if len(self._handed_over) > RESPONSES_REMEMBERED:
                self._handed_over.popitem(last=False)
        return is_known

    def _recorded(self, conversation: str | None) -> int:
        if conversation is None:
            return 0
        with self._lock:
            return self._recorded_below.get(conversation, 0)

    def _remember(self, conversation: str | None, sequences: list[Sequence]) -> None:
        """Up to where a conversation is recorded; of several answers nobody knows which goes on."""
        if conversation is None or not sequences:
            return
        last = sequences[0]
        end = last.first_position + len(last.routes)
        if len(sequences) > 1:
            end = min(end, max(last.prompt_tokens, 0))
        with self._lock:
            known = self._recorded_below.pop(conversation, 0)
            self._recorded_below[conversation] = max(known, end)
            if len(self._recorded_below) > CONVERSATIONS_REMEMBERED:
                self._recorded_below.popitem(last=False)

    def _refuse(self, error: RejectedLineError, rows: int) -> None:
        self._count(refused_responses=1)
        self._say_once(f"{error.reason} ({error.detail})" if error.detail else error.reason)
        if rows:
            self._miss(rows, error.reason)

    def _miss(self, rows: int, reason: str) -> None:
        self._count(missed_rows=rows)
        self._recorder.miss(rows, reason)

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _say_once(self, reason: str) -> None:
        reason = printable(reason[:_LONGEST_REASON])
        with self._lock:
            is_new = reason not in self._said and len(self._said) < _REASONS_SAID
            self._said.add(reason) if is_new else None
        if is_new:
            _log.warning("Returned routes not recorded (said once, then only counted): %s", reason)


def _described(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error of a client's object may be anything
        return type(error).__name__


def _as_object(response: object) -> dict[str, Any]:
    """A response as a dictionary.

    Raises:
        RejectedLineError: It is something else.
    """
    if isinstance(response, dict):
        return response
    if isinstance(response, str):
        return parse_object(response.encode("utf-8", "surrogatepass"))
    if isinstance(response, bytes):
        return parse_object(response)
    dump = getattr(response, "model_dump", None)
    content = dump() if callable(dump) else None
    if not isinstance(content, dict):
        raise RejectedLineError("a response that is no object", type(response).__name__)
    return content


def _computed_tokens(content: dict[str, Any]) -> int:
    """Tokens that the engine computed for a response whose routes cannot be used; 0 if unknown."""
    said = content.get("meta_info", content.get("usage"))
    if not isinstance(said, dict):
        return 0
    details = said.get("prompt_tokens_details")
    cached = said.get(
        "cached_tokens", details.get("cached_tokens") if isinstance(details, dict) else 0
    )
    prompt, generated = said.get("prompt_tokens"), said.get("completion_tokens", 1)
    if type(prompt) is not int or type(generated) is not int:
        return 0
    return max(prompt + generated - 1 - (cached if type(cached) is int else 0), 0)
