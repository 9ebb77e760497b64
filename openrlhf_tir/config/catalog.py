"""Every setting by its dotted name, with everything that its section declares about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .schema import Config
from .sections.base import Section
from .sections.envs import NAME, NamedEnv
from .setting import Condition, Resume, SettingInfo, info_of

ENVS = "envs"


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the configuration tree.

    Attributes:
        name: Dotted name, such as "actor.learning_rate".
        section: The section's dotted name; "run" for settings outside of all sections.
        section_doc: First paragraph of the section's docstring.
        info: pydantic's field: type, default, bounds, description.
        metadata: What the section declares besides, of this setting alone.
        active_when: The conditions of the setting and of the sections around it.
        resume: The setting's policy, or its section's.
        fine_tuning: True if `openrlhf-tir sft` reads the setting.
    """

    name: str
    section: str
    section_doc: str
    info: FieldInfo
    metadata: SettingInfo
    active_when: tuple[Condition, ...]
    resume: Resume
    fine_tuning: bool

    @property
    def short(self) -> str:
        """The setting's effect in a few words: those that it declares, or the first sentence of its description."""
        if self.metadata.short:
            return self.metadata.short
        sentence = (self.info.description or "").partition(". ")[0].removesuffix(".")
        return sentence if sentence[1:2].isupper() else f"{sentence[:1].lower()}{sentence[1:]}"


def walk(
    model: type[BaseModel] = Config, prefix: str = "", conditions: tuple[Condition, ...] = ()
) -> Iterator[Setting]:
    """Yield every setting of a section and the sections in it, in the order of the classes.

    Args:
        model: The section.
        prefix: Its dotted name with a dot at the end.
        conditions: Conditions of the sections around it.
    """
    policy = model.RESUME if issubclass(model, Section) else Section.RESUME
    fine_tuning = model.FINE_TUNING if issubclass(model, Section) else False
    section_doc = " ".join((model.__doc__ or "").partition("\n\n")[0].split())
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        metadata = info_of(info)
        active_when = (*conditions, *metadata.active_when)
        if path == ENVS:
            continue  # its fields depend on the names of the environments: settings_of_env
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from walk(info.annotation, f"{path}.", active_when)
            continue
        yield Setting(
            name=path,
            section=prefix.rstrip(".") or "run",
            section_doc=section_doc,
            info=info,
            metadata=metadata,
            active_when=active_when,
            resume=metadata.resume or policy,
            fine_tuning=fine_tuning if metadata.fine_tuning is None else metadata.fine_tuning,
        )


@cache
def all_settings() -> tuple[Setting, ...]:
    """Return every setting but those of [envs.NAME]."""
    return tuple(walk())


@cache
def settings_of_env(name: str) -> tuple[Setting, ...]:
    """Return every setting of [envs.NAME]."""
    return tuple(walk(NamedEnv, f"{ENVS}.{name}."))


def value_at(cfg: Config, path: str) -> Any:
    """Return the setting or property at a dotted path; a key of an options table is a part of the path."""
    value: Any = cfg
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return value


def env_names(keys: Iterable[str]) -> list[str]:
    """Return the environments that dotted names belong to: calc for `envs.calc.url`."""
    parts = (key.split(".") for key in keys)
    return [*dict.fromkeys(p[1] for p in parts if len(p) > 2 and p[0] == ENVS and NAME.fullmatch(p[1]))]


def settings_with(envs: Iterable[str]) -> list[Setting]:
    """Return every setting of a run that has these environments."""
    return [*all_settings(), *(s for name in envs for s in settings_of_env(name))]


def known_keys(envs: Iterable[str] = ()) -> list[str]:
    """Return the dotted names of every setting of a run that has these environments."""
    return [s.name for s in settings_with(envs)]
