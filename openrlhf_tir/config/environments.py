"""Resolve the environments of a run: each with its own settings and with those that it takes from the common sections.

[env] alone         one environment, called env.name; rows that name no environment belong to it
[envs.NAME] ...     one per section; the env column of a row chooses

cfg.environments -> {name: Environment} -> entry_of(...) wherever a task is run, rewarded, filtered or drawn
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from ..errors import ConfigError, Problem, unknown
from .sections.base import Section
from .sections.conditions import is_user_code
from .sections.env import Env
from .sections.envs import JUDGED_BY, OF_ITS_OWN, NamedEnv
from .sections.filter import Filter
from .sections.reward import REMOTE, Reward
from .servers import OTHER, OWN, SERVERS, ServerInfo

if TYPE_CHECKING:
    from .schema import Config

T = TypeVar("T")


@dataclass(frozen=True)
class Environment:
    """One environment of the run.

    Attributes:
        name: Its name.
        section: The section with its settings, for messages: "env" or "envs.NAME".
        env: Its settings of [env].
        reward: Its settings of [reward].
        filter: Its settings of [filter].
        share: Its part of each batch's groups, relative to the others'; None: by number of rows.
        input_template: Template of its prompts.
    """

    name: str
    section: str
    env: Env
    reward: Reward
    filter: Filter
    share: float | None
    input_template: str | None

    @property
    def prefix(self) -> str:
        """What stands before the name of a setting in a message: "" or "envs.NAME."."""
        return "" if self.section == "env" else f"{self.section}."

    @property
    def serves(self) -> str:
        """The name that its server reports as its environment."""
        return self.env.server or self.name

    @property
    def urls(self) -> list[str]:
        """Base URLs of running servers; empty if the run starts one."""
        return [u.strip().rstrip("/") for u in (self.env.url or "").split(",") if u.strip()]

    @property
    def needs_labels(self) -> bool:
        """True if a reward compares with a row's label. A user's own function may do without."""
        return any(reward.needs_label for reward in self.reward.used_info)

    @property
    def server_info(self) -> ServerInfo:
        """What is known of its server: an entry of SERVERS, OWN or OTHER."""
        return OWN if self.env.file else SERVERS.get(self.serves, OTHER)


def resolve(cfg: Config) -> dict[str, Environment]:
    """Return every environment of the run by name. Raises ConfigError, with a line for each setting that does not work
    with others."""
    if not cfg.envs:
        return {
            cfg.env.name: Environment(
                cfg.env.name, "env", cfg.env, cfg.reward, cfg.filter, None, cfg.data.input_template
            )
        }
    environments = {}
    messages: list[str] = []
    for name, section in cfg.envs.items():
        try:
            environments[name] = _resolved(cfg, name, section)
        except ValidationError as e:
            messages += [
                in_section(f"{err.get('ctx', {}).get('error', err['msg'])}", f"envs.{name}")
                for err in e.errors(include_url=False)
            ]
    if messages:
        raise ConfigError("\n".join(messages))
    return environments


def resolve_or_none(cfg: Config) -> dict[str, Environment] | None:
    """Return `resolve(cfg)`, or None if settings contradict one another."""
    try:
        return resolve(cfg)
    except ConfigError:
        return None


def unlabelled(cfg: Config) -> frozenset[str]:
    """Return the names of the environments whose rows need no label: no reward compares with it, or OpenRLHF's agent
    file gives the reward."""
    return frozenset(name for name, e in cfg.environments.items() if cfg.train.agent_func_path or not e.needs_labels)


def without_calls(cfg: Config, max_calls: int | None = None) -> frozenset[str]:
    """Return the names of the environments whose responses cannot hold a call that we would see.

    That is so with env.max_calls = 0, and with agents, which call what they like.

    Args:
        cfg: The configuration.
        max_calls: An evaluation's limit in place of env.max_calls. None: each environment's own.
    """
    return frozenset(
        name
        for name, e in cfg.environments.items()
        if cfg.by_agent or not (e.env.max_calls if max_calls is None else max_calls)
    )


def in_section(message: str, section: str) -> str:
    """Rewrite a message about settings of the common sections as one about an environment's.

    filter.names becomes envs.calc.filter.names, env.protocol becomes envs.calc.protocol.
    """
    if section == "env":
        return message
    common_setting = r"(?<![\w./])(?:env\.|data\.(?=input_template)|(?=(?:reward|filter)\.))(?=\w+)"
    moved = re.sub(common_setting, f"{section}.", message)
    return moved if section in moved else f"{section}: {moved}"


def _resolved(cfg: Config, name: str, section: NamedEnv) -> Environment:
    own = _set_fields(section)
    common = {k: v for k, v in cfg.env.model_dump().items() if k not in OF_ITS_OWN}
    env = Env.model_validate(common | {k: v for k, v in own.items() if k in Env.model_fields} | {"name": name})
    own_reward = _set_fields(section.reward)
    if "remote_url" in own_reward and REMOTE not in cfg.reward.used and not own_reward.keys() & {"name", "weights"}:
        own_reward["name"] = REMOTE  # as in [reward]: the URL chooses the reward
    common_reward = {
        k: v
        for k, v in cfg.reward.model_dump().items()
        if not any(k in together and own_reward.keys() & set(together) for together in JUDGED_BY)
    }
    reward = Reward.model_validate(common_reward | own_reward)
    filters = Filter.model_validate(cfg.filter.model_dump() | _set_fields(section.filter))
    return Environment(
        name, f"envs.{name}", env, reward, filters, section.share, section.input_template or cfg.data.input_template
    )


def _set_fields(section: Section) -> dict[str, Any]:
    """Return the fields of a section that are set."""
    return {name: value for name in type(section).model_fields if (value := getattr(section, name)) is not None}


def entry_of(table: Mapping[str, T], name: str) -> T:
    """Return what `table` holds for the environment `name`; its only entry if it has one entry, whatever the name.

    Raises:
        ConfigError: There are several environments, and none has this name.
    """
    if name in table:
        return table[name]
    if len(table) == 1:
        return next(iter(table.values()))
    raise unknown("env", name, table, "Add its section [envs.NAME], or correct the row's env column.")


def violations(cfg: Config) -> Iterator[Problem]:
    """Yield what does not work about the environments. If they cannot be resolved, only the reasons for that."""
    try:
        environments = resolve(cfg)
    except ConfigError as e:
        for line in str(e).splitlines():
            yield Problem(line, "invalid_value")
        return
    for environment in environments.values():
        if environment.env.file and environment.urls:
            yield _problem(
                f"{environment.section}.file",
                f"{environment.section}.file = {environment.env.file!r} is an environment that the run starts, "
                f"and {environment.section}.url = {environment.env.url!r} is one that runs. Unset one of them.",
            )
    yield from _shares(environments)
    yield from _servers(environments)
    if not cfg.by_agent:
        yield from _without_user(environments.values())


def _problem(setting: str, message: str) -> Problem:
    return Problem(message, "environment", setting)


def _shares(environments: Mapping[str, Environment]) -> Iterator[Problem]:
    shares = {name: e.share for name, e in environments.items()}
    set_shares = {name: share for name, share in shares.items() if share is not None}
    if set_shares and (missing := [name for name in shares if name not in set_shares]):
        yield _problem(
            f"envs.{missing[0]}.share",
            f"envs.{missing[0]}.share is unset, and"
            f" {', '.join(f'envs.{name}.share = {share:g}' for name, share in set_shares.items())}. Give every"
            " environment a share (0: evaluated, never trained), or none.",
        )
    elif set_shares and sum(set_shares.values()) <= 0:
        yield _problem(
            f"envs.{next(iter(set_shares))}.share",
            f"The shares of {', '.join(f'envs.{name}' for name in set_shares)} sum to 0: nothing would be trained."
            " Give at least one a share above 0.",
        )


def _servers(environments: Mapping[str, Environment]) -> Iterator[Problem]:
    """Yield sections that use one server as different environments. Different turn protocols are fine: the server runs
    what it receives."""
    first: dict[str, Environment] = {}
    for e in environments.values():
        for url in e.urls:
            other = first.setdefault(url, e)
            if other.serves != e.serves:
                yield _problem(
                    f"{e.section}.server",
                    f"{other.section} and {e.section} have one server, {url}, as environment {other.serves!r} (protocol"
                    f" {other.env.protocol!r}) and as {e.serves!r} (protocol {e.env.protocol!r}), and a server is one"
                    f" environment. Set {e.section}.server = {other.serves!r} if both mean it,"
                    " or give each its own URL.",
                )


def _without_user(environments: Iterable[Environment]) -> Iterator[Problem]:
    """Yield environments whose own reward would be 0 for every response, because the model cannot end its turn.

    A protocol of the user's may send messages without the option.
    """
    for e in environments:
        if (
            e.server_info.rewards_messages
            and "env" in e.reward.used
            and not e.env.options.get("user")
            and not is_user_code(e.env.protocol)
        ):
            yield _problem(
                f"{e.section}.options",
                f"{e.prefix}reward.name has 'env', and {e.section}.options.user is not set: the environment"
                f" {e.serves!r} rewards a response when the model has told its user that it is done, so every reward"
                f" would be 0. Set {e.section}.options user = true, or use {e.prefix}reward.name 'artist' with its"
                " option functions.",
            )
