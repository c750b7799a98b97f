"""Build tiny models of MoE families, and find what families there are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, Final

from engines.families.tiny_families import BIAS, FAMILIES, TINY

_EXPERTS_CLASS: Final = re.compile(
    r"^class \w+(Experts|Router|TopKGating|MoE|Moe|MoELayer|SparseMoeBlock|SparseMLP|MoeMLP)\(",
    re.MULTILINE,
)


_ROUTER: Final = re.compile(r"\.(gate|router)(\.(?!\w*norm)\w+)*\.(weight|bias)$")


def families_in_transformers() -> list[str]:
    """Every model folder whose modeling file defines a class of experts or of their router."""
    import transformers

    models = Path(transformers.__file__).parent / "models"
    found = []
    for file in sorted(models.glob("*/modeling_*.py")):
        source = file.read_text(encoding="utf-8")
        if _EXPERTS_CLASS.search(source) and "expert" in source.lower():
            found.append(file.parent.name)
    return found


def folder_of(name: str) -> str:
    """The model folder of an entry of `FAMILIES`."""
    return name.partition(",")[0]


def version() -> tuple[int, int]:
    """Of transformers, without its patch."""
    import transformers

    return version_of(transformers.__version__)


def version_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def build(name: str, **changed: Any) -> Any:
    """A tiny random model of a family, in evaluation; its routers have strong opinions.

    Args:
        name: Of `FAMILIES`.
        changed: Settings in the place of the family's.
    """
    import torch

    family = FAMILIES[name]
    folder = folder_of(name)
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    model_class = getattr(module, family.model_class)
    config_class = model_class.config_class
    defaults = config_class()
    settings = {key: value for key, value in TINY.items() if _has(defaults, key)}
    if "qk_rope_head_dim" in settings:
        # With latent attention it is another name for this.
        settings["head_dim"] = settings["qk_rope_head_dim"]
    settings.update(family.config)
    if version() < (5, 0):
        settings.update(family.config_before_5)
    settings.update(changed)
    torch.manual_seed(5)
    model = model_class(config_class(**settings)).eval()
    _excite(model)
    if family.forgets_experts:
        for name_of, weight in model.named_parameters():
            if ".experts." in name_of:
                torch.nn.init.normal_(weight, std=0.1)
    return model


def _has(config: object, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # noqa: BLE001 - a class of its own, in some versions
        # Settings that may differ by layer cannot be read of the whole.
        return True


def _excite(model: Any) -> None:
    """Strong routers, and biases that change what is selected."""
    import torch

    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith((BIAS, "expert_bias", "balancing_biases")):
            # Not below 0: there experts outside of the chosen groups would tie in some families.
            torch.nn.init.uniform_(tensor, 0.0, 0.4)
        elif _ROUTER.search(name):
            torch.nn.init.normal_(tensor, std=0.3)
