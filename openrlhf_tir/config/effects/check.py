"""Effects: flags that change nothing in the configuration that they are part of. Each is a mistake, since whoever wrote
it expected something.

A recipe may hold such values (another recipe or a flag may switch their feature on); a flag that says what holds anyway
is let pass.

    [env], [reward], [filter]     idle where it is idle for every environment that takes it
    [envs.NAME]                   idle where the same setting would be for this environment alone
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from ...errors import ConfigError
from ..environments import Environment, in_section
from ..schema import Config
from .rows import IDLE, ONE_ENVIRONMENT, Idle

OF_AN_ENVIRONMENT = ("env.", "reward.", "filter.")


def without_effect(cfg: Config, given: Mapping[str, Any], *, makes_data: bool = False) -> Iterator[str]:
    """A line for each of the `given` keys, flags of the command line, that changes nothing in `cfg`.

    makes_data: the command makes model and data by itself, held-out problems among them.
    """
    default = Config()
    try:
        environments = cfg.environments
    except ConfigError:
        return  # told by the rules
    if makes_data:
        cfg = cfg.model_copy(update={"eval": cfg.eval.model_copy(update={"dataset": cfg.eval.dataset or "made"})})
    alone = {name: _alone(cfg, e) for name, e in environments.items()}
    for key, row in _rows([*IDLE, ONE_ENVIRONMENT]):
        if key in given and _at(cfg, key) != _at(default, key) and _idle(key, row, cfg, alone):
            yield f"--{key} has no effect {row.why}"
    for name in cfg.envs:
        for key, row in _rows(IDLE):
            flag = f"envs.{name}.{key.removeprefix('env.')}"
            if (
                key.startswith(OF_AN_ENVIRONMENT)
                and flag in given
                and _at(alone[name], key) != _at(default, key)
                and row.when(alone[name])
            ):
                yield f"--{flag} has no effect {in_section(row.why, f'envs.{name}')}"


def _rows(rows: list[Idle]) -> Iterator[tuple[str, Idle]]:
    for row in rows:
        for key in row.keys.split():
            yield key, row


def _alone(cfg: Config, e: Environment) -> Config:
    """The run, if this were its only environment."""
    return cfg.model_copy(update={"env": e.env, "reward": e.reward, "filter": e.filter, "envs": {}})


def _idle(key: str, row: Idle, cfg: Config, alone: Mapping[str, Config]) -> bool:
    if row is ONE_ENVIRONMENT or not key.startswith(OF_AN_ENVIRONMENT):
        return row.when(cfg)
    return all(row.when(one) for one in alone.values())


def _at(cfg: Config, key: str) -> Any:
    return reduce(getattr, key.split("."), cfg)
