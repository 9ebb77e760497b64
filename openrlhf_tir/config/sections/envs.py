"""Several environments in one run: [envs.NAME], a section for each. What one leaves unset is taken from [env],
[reward], [filter] and [data].

The classes are made from those sections, field by field with their constraints, so what [env] has, [envs.NAME] has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from .base import Section
from .env import Env
from .filter import Filter
from .reward import Reward

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What an environment may be called: its name stands in flags, metrics and file names."""
OF_THE_RUN = ("name", "token_env")
"""Fields of [env] that no [envs.NAME] has: its name is NAME, and the token is one for all servers of the run."""
OF_ITS_OWN = ("url", "file", "server", "server_options", "stateful")
"""Fields that say which server an environment has: never taken from [env]."""
JUDGED_BY = (("name", "weights", "options"), ("group", "group_options"))
"""Fields of [reward] that go together: where [envs.NAME.reward] sets one, it takes none from [reward]."""
OF_THE_WORKERS = ("verify_timeout_s", "verify_deadline_s", "workers", "max_failed_groups")
"""Fields of [reward] that are the actor's or the run's, whatever the environment."""
OF_THE_LEARNER = ("max_base_ppl",)
"""Fields of [filter] that the learner applies to a whole batch, whatever the environment."""


def _optional(model: type[Section], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a section with their constraints, unset by default."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if name not in without:
            given: Any = info.annotation
            for constraint in info.metadata:
                given = Annotated[given, constraint]
            fields[name] = (given | None, Field(None, description=info.description))
    return fields


class _Reward(Section):
    """What a response in this environment is worth; unset: as [reward] says."""


class _Filter(Section):
    """Which groups of this environment are trained; unset: as [filter] says."""


class _NamedEnv(Section):
    """One environment of several: its server, protocol, limits, reward, filters, share of a batch; unset: [env]'s."""

    share: float | None = Field(
        None,
        ge=0,
        description=(
            "its part of each batch's groups, relative to the shares of the others; 0:"
            " evaluated, never trained; unset for all: by number of rows"
        ),
    )
    input_template: str | None = Field(None, description="template of its prompts; unset: data.input_template")


EnvReward = create_model("EnvReward", __base__=_Reward, __module__=__name__, **_optional(Reward, OF_THE_WORKERS))
EnvFilter = create_model("EnvFilter", __base__=_Filter, __module__=__name__, **_optional(Filter, OF_THE_LEARNER))

if TYPE_CHECKING:

    class NamedEnv(_NamedEnv):
        reward: Section
        filter: Section

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
