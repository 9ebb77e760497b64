"""Engine-argument checks: what vllm.engine_args names is known to the vLLM that is installed. Its source is read; vLLM
is not imported."""

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
    """`known`: the arguments there are; tests pass their own. Where no vLLM is installed (a head without GPUs) the
    actors say it."""
    given = cfg.vllm.engine_args
    if not given:
        return []
    if cfg.rollout.engine != "vllm":
        raise ConfigError(
            f"vllm.engine_args is set, and rollout.engine = {cfg.rollout.engine!r} has no such arguments. Leave it out."
        )
    known = _known() if known is None else known
    unknown = [name for name in given if known and name not in known]
    if unknown:
        close = {name: difflib.get_close_matches(name, known, n=1) for name in unknown}
        said = ", ".join(f"{name} (did you mean {near[0]}?)" if near else name for name, near in close.items())
        raise ConfigError(
            f"vllm.engine_args: the vLLM that is installed has no {said}."
            " Correct it; AsyncEngineArgs lists what there is."
        )
    return [f"vLLM is also given {', '.join(f'{name} = {value!r}' for name, value in given.items())}"]


@functools.cache
def _known() -> frozenset[str]:
    """The fields of AsyncEngineArgs; empty where they cannot be read."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return frozenset()
    try:
        tree = ast.parse((Path(spec.origin).parent / SOURCE).read_text())
    except (OSError, SyntaxError):
        return frozenset()
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in CLASSES)
    return frozenset(
        f.target.id for c in classes for f in c.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
    )
