"""Report flags that have no effect in their configuration. Each is a mistake: whoever wrote it expected an effect.

Only the command line is checked. A recipe may hold such values, because another recipe or a flag may make them active,
and a flag may repeat a default that holds in any case. When a setting has an effect is declared at the setting
(`active_when`, setting.py).

    [env], [reward], [filter]     inactive if it is inactive for every environment that takes it
    [envs.NAME]                   inactive if the same setting would be for this environment alone
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError
from .catalog import all_settings, value_at
from .environments import Environment, in_section
from .paths import shown
from .problems import settings_in
from .schema import Config
from .setting import Condition


class InactiveSetting(NamedTuple):
    """A setting that has no effect.

    Attributes:
        name: Its dotted name.
        fact: Values and condition, to follow "has no effect".
    """

    name: str
    fact: str

    def __str__(self) -> str:
        return f"--{self.name} has no effect {self.fact}. Change that, or leave it out."


OF_AN_ENVIRONMENT = ("env.", "reward.", "filter.")


def inactive_settings(cfg: Config, given: Mapping[str, Any], *, makes_data: bool = False) -> Iterator[InactiveSetting]:
    """Yield each setting on the command line that has no effect.

    Args:
        cfg: The configuration.
        given: Dotted name -> value of the settings on the command line.
        makes_data: True if the command makes model and data by itself, held-out problems among them.
    """
    default = Config()
    try:
        environments = cfg.environments
    except ConfigError:
        return  # reported as a broken rule
    if makes_data:
        cfg = cfg.model_copy(update={"eval": cfg.eval.model_copy(update={"dataset": cfg.eval.dataset or "made"})})
    alone = {name: _with_this_environment_only(cfg, e) for name, e in environments.items()}
    for setting in all_settings():
        name = setting.name
        of_environment = name.startswith(OF_AN_ENVIRONMENT)
        if name in given:
            is_default = value_at(cfg, name) == value_at(default, name)
            for condition in setting.active_when:
                if is_default and not condition.of_default:
                    continue
                configs = alone if of_environment and not condition.of_run else {"": cfg}
                if not any(map(condition.holds, configs.values())):
                    first = next(iter(configs))
                    section = f"envs.{first}" if first in cfg.envs else "env"
                    yield _inactive(name, condition, configs[first], section)
        for environment in cfg.envs if of_environment else ():
            flag = f"envs.{environment}.{name.removeprefix('env.')}"
            only = alone[environment]
            if flag in given and value_at(only, name) != value_at(default, name):
                for condition in setting.active_when:
                    if not condition.of_run and not condition.holds(only):
                        section = f"envs.{environment}"
                        fact = _inactive(name, condition, only, section).fact
                        yield InactiveSetting(flag, in_section(fact, section))


def _inactive(name: str, condition: Condition, cfg: Config, section: str = "env") -> InactiveSetting:
    """Return the message about a condition that does not hold, with the values of the settings that it names.

    Args:
        name: The setting that has no effect.
        condition: The condition.
        cfg: The configuration with the values; of several environments, that of the one in `section`.
        section: The environment whose values are shown, as the message names it.
    """
    unnamed = {name} if section == "env" else {name, "env.name"}  # [envs.NAME] has no setting for its name
    others = [other for other in dict.fromkeys(settings_in(condition.text)) if other not in unnamed]
    values = ", ".join(f"{other} = {shown(value_at(cfg, other), 60)}" for other in others).replace("= None", "unset")
    here = f"here ({in_section(values, section)})" if values else "here"
    return InactiveSetting(name, f"{here}: it only applies {condition.text}")


def _with_this_environment_only(cfg: Config, environment: Environment) -> Config:
    return cfg.model_copy(
        update={"env": environment.env, "reward": environment.reward, "filter": environment.filter, "envs": {}}
    )
