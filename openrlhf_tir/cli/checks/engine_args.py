"""Check that the installed vLLM knows the names in vllm.engine_args. Its source is read; vLLM is not imported."""

from __future__ import annotations

import ast
import difflib
import functools
from importlib.util import find_spec
from pathlib import Path

from ...config import Config
from ...errors import ConfigError

SOURCE = "engine/arg_utils.py"
CLASSES = ("EngineArgs", "AsyncEngineArgs")


def check_engine_args(cfg: Config, known: frozenset[str] | None = None) -> list[str]:
    """Check the names in vllm.engine_args and return facts.

    Args:
        cfg: The configuration.
        known: The arguments that exist; None reads them from the installed vLLM. If there is none (a head node without
            GPUs), the actors report unknown names.

    Raises:
        ConfigError: An argument does not exist, or the engine is not vLLM.
    """
    arguments = cfg.vllm.engine_args
    if not arguments:
        return []
    if cfg.rollout.engine != "vllm":
        raise ConfigError(
            f"vllm.engine_args is set, and rollout.engine = {cfg.rollout.engine!r} has no such arguments. Leave it out."
        )
    known = _known() if known is None else known
    unknown = [name for name in arguments if known and name not in known]
    if unknown:
        close = {name: difflib.get_close_matches(name, known, n=1) for name in unknown}
        suggestions = ", ".join(
            f"{name} (did you mean {matches[0]}?)" if matches else name for name, matches in close.items()
        )
        raise ConfigError(
            f"vllm.engine_args: the vLLM that is installed has no {suggestions}."
            " Correct it; AsyncEngineArgs lists what there is."
        )
    return [f"vLLM is also given {', '.join(f'{name} = {value!r}' for name, value in arguments.items())}"]


@functools.cache
def _known() -> frozenset[str]:
    """Return the fields of AsyncEngineArgs; empty if they cannot be read."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    try:
        tree = ast.parse((Path(spec.origin).parent / SOURCE).read_text())
    except (OSError, SyntaxError):
        return frozenset()
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in CLASSES)
    fields = (node for cls in classes for node in cls.body if isinstance(node, ast.AnnAssign))
    return frozenset(field.target.id for field in fields if isinstance(field.target, ast.Name))
