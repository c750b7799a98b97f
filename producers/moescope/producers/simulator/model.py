"""What is simulated: the model's shape, the domains of its traffic, how its router behaves."""

from __future__ import annotations

from dataclasses import dataclass

from moescope.core.errors import InputError
from moescope.core.vocabulary import MAX_EXPERTS


class SimulationError(InputError):
    """A scenario contradicts itself or cannot be simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model that the fleet serves.

    Attributes:
        experts: E. top_k: k.
        layers: Indices of the MoE layers, ascending.
    """

    name: str = "simulated-moe"
    revision: str = "r1"
    experts: int = 64
    top_k: int = 8
    layers: tuple[int, ...] = tuple(range(16))

    def __post_init__(self) -> None:
        """Refuse what no router could do."""
        if not 1 <= self.top_k <= self.experts <= MAX_EXPERTS:
            raise SimulationError(
                f"A model cannot select {self.top_k} of {self.experts} experts.",
                next_step=f"Use 1 <= top_k <= experts <= {MAX_EXPERTS}.",
            )
        ascending = all(a < b for a, b in zip(self.layers, self.layers[1:], strict=False))
        if not self.layers or self.layers[0] < 0 or not ascending:
            raise SimulationError(
                f"{self.layers} is no list of layers.",
                next_step="Name at least one layer index, ascending, from 0.",
            )


@dataclass(frozen=True, slots=True)
class Domain:
    """A kind of content with expert preferences of its own.

    Attributes:
        family: Domains of one family share most of their preferences.
        strength: Standard deviation of the domain's own logits, relative to the model's
            `RouterSpec.domain_scale`.
    """

    name: str
    family: str
    strength: float = 1.0


DOMAINS = (
    Domain("prose", "text"),
    Domain("chat", "text"),
    Domain("code", "code"),
    Domain("json", "structure", 1.25),
    Domain("math", "code", 1.1),
)
DOMAIN_INDEX = {domain.name: index for index, domain in enumerate(DOMAINS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """How the simulated router behaves; the defaults give figures like real models'.

    `docs/explanation/simulator.md` shows what they were measured to give.

    Attributes:
        popularity_scale: Standard deviation of the logits that all domains share.
        domain_scale: Standard deviation of a domain's own logits.
        family_share: Share of a domain's variance that its family has in common.
        noise_scale: Standard deviation of the token's own logits.
        persistence: Correlation of neighbouring tokens' own logits, in [0, 1).
        topics, topic_scale: Each domain has that many topics (a power of two) with logits of
            their own of that standard deviation; a request mixes two of them.
        request_pull: Largest share of (token, layer) pairs in which one expert is replaced
            by one of the request's favourites; each request has its own share below.
        favourites: Favourite experts per request and layer.
        stretch: Consecutive tokens of coherent routing before the text moves on.
        pool_tokens: Distinct token routes per domain and layer; a power of two, over topics.
    """

    popularity_scale: float = 0.4
    domain_scale: float = 0.6
    family_share: float = 0.6
    noise_scale: float = 1.1
    persistence: float = 0.5
    topics: int = 16
    topic_scale: float = 0.35
    request_pull: float = 0.35
    favourites: int = 4
    stretch: int = 32
    pool_tokens: int = 8192

    def __post_init__(self) -> None:
        """Refuse values that the arithmetic cannot use."""
        if not _is_power_of_two(self.topics) or not _is_power_of_two(self.pool_tokens):
            raise SimulationError(
                f"{self.pool_tokens} pool tokens over {self.topics} topics cannot be looked up.",
                next_step="Use powers of two.",
            )
        if self.pool_tokens <= self.topics:
            raise SimulationError(
                f"{self.pool_tokens} pool tokens are too few for {self.topics} topics.",
                next_step="Use at least two tokens per topic.",
            )
        if not 0 <= self.persistence < 1:
            raise SimulationError(
                f"persistence is {self.persistence}.", next_step="Use a value in [0, 1)."
            )
        if self.stretch < 1 or self.favourites < 1:
            raise SimulationError(
                "stretch and favourites count something.", next_step="Use at least 1."
            )


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
