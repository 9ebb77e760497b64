"""Compare the configuration of a checkpoint with that of the run that resumes from it.

Whether a setting may differ is declared at the setting (`resume`, setting.py). pipeline/checkpoints/lineage.py compares
some besides by what they amount to: the staleness that results from pipeline.mode and max_staleness, the updates per
batch (train.batch_size, train.max_epochs), and, unless ds.zero_stage is 3, the number of learner ranks; the model and
the prompts by content.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from .catalog import env_names, settings_with
from .former_settings import as_today, decided_otherwise
from .own_files import by_content
from .removed_settings import remedy
from .schema import Config
from .setting import REPORTED, Resume


class Change(NamedTuple):
    """A setting that differs between a checkpoint and the run that resumes from it."""

    field: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.field} {_shown(self.before)} -> {_shown(self.now)}"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted names of a dumped configuration's settings and their values. A table of options is one setting."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and name not in ("options", "server_options", "engine_args"):
            out |= flat(value, f"{prefix}{name}.")
        else:
            out[prefix + name] = value
    return out


def dumped(cfg: Config) -> dict[str, Any]:
    """Return the configuration as a checkpoint keeps it: as JSON, without secrets."""
    tree = cfg.model_dump(mode="json")
    tree["logger"]["wandb"].pop("key")
    return tree


def changes(saved: dict[str, Any], cfg: Config) -> tuple[list[Change], list[Change]]:
    """Compare the configuration of a checkpoint with that of a run.

    Args:
        saved: The configuration as the checkpoint keeps it. A setting that it lacks has its default there.
        cfg: The run's configuration.

    Returns:
        The changes that are refused, and those to report. A setting that moved since is compared where it is now. One
        that was removed since is reported if it decided what was sampled or kept (DECIDED). Other removed settings are
        neither refused nor reported.
    """
    before = flat(by_content(as_today(saved)))
    now = flat(by_content(dumped(cfg)))
    default = flat(dumped(Config()))
    gone = [name for name in before if name not in now]
    names = [*now, *(name for name in gone if remedy(name) is None or decided_otherwise(name, before[name]))]
    pairs = ((name, before.get(name, default.get(name)), now.get(name)) for name in names)
    differing = [Change(name, old, new) for name, old, new in pairs if old != new]
    return (
        [change for change in differing if policy_of(change.field).policy == "refused"],
        [change for change in differing if policy_of(change.field).policy == "reported"],
    )


def refusal(field: str) -> str | None:
    """Return why a resume must not change the setting; None if it may."""
    policy = policy_of(field)
    return policy.reason if policy.policy == "refused" else None


@cache
def policy_of(field: str) -> Resume:
    """Return what happens if a resumed run has another value of the setting.

    A name that no setting has any more is reported, as are the entries of a table, such as reward.weights.env.
    """
    known = {setting.name: setting for setting in settings_with(env_names([field]))}
    while field not in known and "." in field:
        field = field.rpartition(".")[0]
    return known[field].resume if field in known else REPORTED
