"""Environments: what a run's configuration says of each one, with everything that it takes from the common sections
filled in.

[env] alone         one environment, called env.name; a row that names none is of it
[envs.NAME] ...     one per section; a row's env column chooses

cfg.environments  ->  {name: Environment}  ->  one(...) wherever a task has to be run, rewarded, filtered or drawn
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from ..errors import ConfigError, unknown
from .sections.base import Section
from .sections.env import Env
from .sections.envs import JUDGED_BY, OF_ITS_OWN, NamedEnv
from .sections.filter import Filter
from .sections.reward import Reward

if TYPE_CHECKING:
    from .schema import Config

T = TypeVar("T")
WITHOUT_LABEL = ("env", "format", "model", "remote")
"""Registered rewards that are told no label, or leave it to somebody else what to do with it."""
RUN_CODE = ("python_tir", "swe")
"""Servers of ours that run what a model writes."""


@dataclass(frozen=True)
class Environment:
    """One environment of the run. `section` is where its settings are, for messages: "env" or "envs.NAME"."""

    name: str
    section: str
    env: Env
    reward: Reward
    filter: Filter
    share: float | None
    input_template: str | None

    @property
    def serves(self) -> str:
        """The environment that its server says it is."""
        return self.env.server or self.name

    @property
    def urls(self) -> list[str]:
        """Base URLs of running servers; empty where the run starts one."""
        return [u.strip().rstrip("/") for u in (self.env.url or "").split(",") if u.strip()]

    @property
    def needs_labels(self) -> bool:
        """Whether a reward compares with a row's label; a function of one's own may do without."""
        return any(":" not in name and name not in WITHOUT_LABEL for name in self.reward.used)

    @property
    def runs_code(self) -> bool:
        """Whether it is one of ours that runs what a model writes."""
        return self.serves in RUN_CODE and not self.env.file


def resolve(cfg: Config) -> dict[str, Environment]:
    """Every environment of the run by name. Raises ConfigError for settings that do not work together, a line each."""
    if not cfg.envs:
        return {
            cfg.env.name: Environment(
                cfg.env.name, "env", cfg.env, cfg.reward, cfg.filter, None, cfg.data.input_template
            )
        }
    found, wrong = {}, []
    for name, section in cfg.envs.items():
        try:
            found[name] = _resolved(cfg, name, section)
        except ValidationError as e:
            wrong += [
                in_section(f"{err.get('ctx', {}).get('error', err['msg'])}", f"envs.{name}")
                for err in e.errors(include_url=False)
            ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found


def resolve_or_none(cfg: Config) -> dict[str, Environment] | None:
    """Return `resolve(cfg)`, or None if settings contradict one another."""
    try:
        return resolve(cfg)
    except ConfigError:
        return None


def unlabelled(cfg: Config) -> frozenset[str]:
    """Names of the environments whose rows need no label: no reward compares with it, or OpenRLHF's agent file gives
    the reward."""
    return frozenset(name for name, e in cfg.environments.items() if cfg.train.agent_func_path or not e.needs_labels)


def without_calls(cfg: Config, max_calls: int | None = None) -> frozenset[str]:
    """Names of the environments whose responses cannot hold a call that we would see: env.max_calls = 0, or agents that
    call what they like. `max_calls`: an evaluation's, in place of env.max_calls; None: as each environment says."""
    return frozenset(
        name
        for name, e in cfg.environments.items()
        if cfg.by_agent or not (e.env.max_calls if max_calls is None else max_calls)
    )


def in_section(said: str, section: str) -> str:
    """What is said of a common section's setting, said of an environment's: filter.names -> envs.calc.filter.names,
    env.protocol -> envs.calc.protocol."""
    if section == "env":
        return said
    moved = re.sub(r"(?<![\w./])(?:env\.|data\.(?=input_template)|(?=(?:reward|filter)\.))(?=\w+)", f"{section}.", said)
    return moved if section in moved else f"{section}: {moved}"


def _resolved(cfg: Config, name: str, section: NamedEnv) -> Environment:
    own = _said(section)
    common = {k: v for k, v in cfg.env.model_dump().items() if k not in OF_ITS_OWN}
    env = Env.model_validate(common | {k: v for k, v in own.items() if k in Env.model_fields} | {"name": name})
    judged = _said(section.reward)
    theirs = {
        k: v
        for k, v in cfg.reward.model_dump().items()
        if not any(k in together and judged.keys() & set(together) for together in JUDGED_BY)
    }
    reward = Reward.model_validate(theirs | judged)
    filters = Filter.model_validate(cfg.filter.model_dump() | _said(section.filter))
    return Environment(
        name, f"envs.{name}", env, reward, filters, section.share, section.input_template or cfg.data.input_template
    )


def _said(section: Section) -> dict[str, Any]:
    """The fields that are set."""
    return {name: value for name in type(section).model_fields if (value := getattr(section, name)) is not None}


def one(table: Mapping[str, T], name: str) -> T:
    """What `table` holds for the environment `name`. Where there is one environment only it is that one, whatever a
    task calls it.

    Raises ConfigError for a name that is none of several.
    """
    if name in table:
        return table[name]
    if len(table) == 1:
        return next(iter(table.values()))
    raise unknown("env", name, table, "Add its section [envs.NAME], or correct the row's env column.")


def violations(cfg: Config) -> Iterator[str]:
    """What does not work about the environments, a line each; nothing further where they cannot be resolved."""
    try:
        environments = resolve(cfg)
    except ConfigError as e:
        yield from str(e).splitlines()
        return
    for found in environments.values():
        if found.env.file and found.urls:
            yield (
                f"{found.section}.file = {found.env.file!r} is an environment that the run starts, "
                f"and {found.section}.url = {found.env.url!r} is one that runs. Unset one of them."
            )
    yield from _shares(environments)
    yield from _servers(environments)


def _shares(environments: Mapping[str, Environment]) -> Iterator[str]:
    shares = {name: e.share for name, e in environments.items()}
    given = {name: share for name, share in shares.items() if share is not None}
    if given and (missing := [name for name in shares if name not in given]):
        yield (
            f"envs.{missing[0]}.share is unset, and"
            f" {', '.join(f'envs.{name}.share = {share:g}' for name, share in given.items())}. Give every environment a"
            " share (0: evaluated, never trained), or none."
        )
    elif given and sum(given.values()) <= 0:
        yield (
            f"The shares of {', '.join(f'envs.{name}' for name in given)} sum to 0: nothing would be trained."
            " Give at least one a share above 0."
        )


def _servers(environments: Mapping[str, Environment]) -> Iterator[str]:
    """A server is one environment: sections may share it with different turn protocols (it runs what it is sent), not
    as different environments."""
    first: dict[str, Environment] = {}
    for e in environments.values():
        for url in e.urls:
            other = first.setdefault(url, e)
            if other.serves != e.serves:
                yield (
                    f"{other.section} and {e.section} have one server, {url}, as environment {other.serves!r} (protocol"
                    f" {other.env.protocol!r}) and as {e.serves!r} (protocol {e.env.protocol!r}), and a server is one"
                    f" environment. Set {e.section}.server = {other.serves!r} if both mean it,"
                    " or give each its own URL."
                )
