from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from engines.families.tiny_models import build

from moescope.core.errors import InputError
from moescope.producers.torch_probe.families import find_routers

if TYPE_CHECKING:
    from collections.abc import Callable

PROBABILITIES_UNTIL_6 = ["mixtral", "olmoe", "deepseek_v3"]


def of_probabilities(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A router's forward as transformers 5.0 to 5.5 have it."""

    def softened(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if isinstance(output, tuple):
            return (output[0].float().softmax(-1), *output[1:])
        return output.float().softmax(-1)

    return softened


@pytest.mark.parametrize("name", PROBABILITIES_UNTIL_6)
def test_probabilities_in_the_place_of_logits_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers 5.0 to 5.5: a second softmax would be recorded as the router's."""
    model = build(name)
    for router in find_routers(model):
        forward = of_probabilities(router.module.forward)
        monkeypatch.setattr(router.module, "forward", forward)
    for version in ("5.0.0", "5.5.4", "5.5.0.dev0"):
        with pytest.raises(InputError, match=f"of transformers {version}") as refusal:
            find_routers(model, transformers_version=version)
        assert "5.6" in refusal.value.next_step


@pytest.mark.parametrize("name", PROBABILITIES_UNTIL_6)
def test_a_router_that_is_seen_to_return_logits_is_read(name: str) -> None:
    """What it does decides, not the version alone."""
    model = build(name)
    assert len(find_routers(model, transformers_version="5.2.0")) == len(find_routers(model))


def test_a_router_that_cannot_be_asked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proof is no logits; in other versions nobody asks."""
    model = build("mixtral")

    def refuse(*_arguments: Any) -> Any:
        raise TypeError("other arguments")

    monkeypatch.setattr(find_routers(model)[0].module, "forward", refuse)
    with pytest.raises(InputError, match="cannot read"):
        find_routers(model, transformers_version="5.4.1")
    for version in ("4.57.6", "5.6.0", "6.0.0"):
        assert find_routers(model, transformers_version=version)
