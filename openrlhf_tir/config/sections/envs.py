"""Several environments in one run: [envs.NAME], a section for each. A setting that it leaves unset is taken from [env],
[reward], [filter] or [data].

The classes are derived from those sections field by field, so [envs.NAME] has every setting that [env] has, with the
same constraints and metadata."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from ..setting import ALLOWED, SettingInfo, refused, setting
from .base import Section
from .env import Env
from .filter import Filter
from .reward import Reward

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Allowed names of environments: they are parts of flags, metrics and file names."""
OF_THE_RUN = ("name",)
"""Fields of [env] that no [envs.NAME] has: its name is NAME."""
OF_ITS_OWN = ("url", "file", "server", "server_options")
"""Fields that say which server an environment has: they are never taken from [env]."""
JUDGED_BY = (("name", "weights", "options"), ("group", "group_options"))
"""Fields of [reward] that belong together: if [envs.NAME.reward] sets one, none of them is taken from [reward]."""
OF_THE_WORKERS = ("verify_timeout_s", "workers")
"""Fields of [reward] that belong to the actor, whatever the environment."""
OF_THE_REWARD_MODEL = ("model_name_or_path", "model_replicas", "num_nodes", "normalize_enable")
"""Fields of [reward] that belong to the reward model, of which a run has one for all environments."""
OF_THE_LEARNER = ("max_base_ppl",)
"""Fields of [filter] that the learner applies to a whole batch, whatever the environment."""


def _optional(model: type[Section], without: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a section with their constraints and metadata, unset by default."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if name in without:
            continue
        annotation: Any = info.annotation
        field: Any = Field(None, description=info.description)
        for entry in info.metadata:
            if isinstance(entry, SettingInfo):
                field.metadata.append(entry)
            else:
                annotation = Annotated[annotation, entry]
        fields[name] = (annotation | None, field)
    return fields


class _Reward(Section):
    """What a response in this environment is worth. Unset: as [reward] says."""


class _Filter(Section):
    """Which groups of this environment are trained. Unset: as [filter] says."""


class _NamedEnv(Section):
    """One of several environments: its server, protocol, limits, reward, filters and share of a batch. Unset: as [env]
    says."""

    share: float | None = setting(
        None,
        ge=0,
        description=(
            "Its part of each batch's groups, relative to the shares of the others. 0: evaluated, never trained. Unset"
            " for all: by number of rows."
        ),
        resume=refused("the order of the prompts comes from it"),
    )
    input_template: str | None = setting(
        None, description="Template of its prompts. Unset: data.input_template.", resume=ALLOWED
    )


EnvReward = create_model(
    "EnvReward",
    __base__=_Reward,
    __module__=__name__,
    **_optional(Reward, (*OF_THE_WORKERS, *OF_THE_REWARD_MODEL)),
)
EnvFilter = create_model("EnvFilter", __base__=_Filter, __module__=__name__, **_optional(Filter, OF_THE_LEARNER))

if TYPE_CHECKING:

    class NamedEnv(_NamedEnv):  # the fields of the derived classes are unknown to a type checker
        reward: Any
        filter: Any

else:
    NamedEnv = create_model(
        "NamedEnv",
        __base__=_NamedEnv,
        __module__=__name__,
        __doc__=_NamedEnv.__doc__,
        **_optional(Env, OF_THE_RUN),
        reward=(EnvReward, Field(default_factory=EnvReward)),
        filter=(EnvFilter, Field(default_factory=EnvFilter)),
    )
