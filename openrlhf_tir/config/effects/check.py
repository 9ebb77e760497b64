"""Effects: flags that change nothing in the configuration that they are part of. Each is a mistake, since whoever wrote it expected something.

A recipe may hold such values (another recipe or a flag may switch their feature on); a flag that says what holds anyway is let pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from ...errors import ConfigError
from ..schema import Config
from .rows import IDLE


def without_effect(cfg: Config, given: Mapping[str, Any], *, makes_data: bool = False) -> Iterator[str]:
    """A line for each of the `given` keys, flags of the command line, that changes nothing in `cfg`.

    makes_data: the command makes model and data by itself, held-out problems among them.
    """
    default = Config()
    try:
        _ = cfg.environments
    except ConfigError:
        return  # told by the rules
    if makes_data:
        cfg = cfg.model_copy(update={"eval": cfg.eval.model_copy(update={"dataset": cfg.eval.dataset or "made"})})
    for keys, when, why in IDLE:
        for key in keys.split():
            if key in given and when(cfg) and _at(cfg, key) != _at(default, key):
                yield f"--{key} has no effect {why}"
    for name, section in cfg.envs.items():
        for field in ("workers", "stateful", "server_options"):
            if (key := f"envs.{name}.{field}") in given and getattr(section, "url", None):
                yield f"--{key} has no effect with envs.{name}.url: that server was started with its own. Set it there, or leave the URL out."


def _at(cfg: Config, key: str) -> Any:
    return reduce(getattr, key.split("."), cfg)
