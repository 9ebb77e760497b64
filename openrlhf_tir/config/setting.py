"""What is known about a setting stands at the setting: this module has the words for it.

    declared once, at the field        read by
    type, default, bounds              pydantic, which checks the value
    description, unit                  --help-all (flags.py), docs/settings.md (reference.py), messages
    short                              --help (short_help.py)
    active_when                        the same two, and "has no effect" (inactive.py)
    resume                             what a resumed run may change (changes.py), docs/settings.md
    openrlhf                           the import of OpenRLHF's command lines (openrlhf_flags.py)
    names                              which values are the user's files (own_files.py, recipe_paths.py)
    fine_tuning                        the settings of `openrlhf-tir sft` (fine_tuning.py)

A setting is declared in its section (sections/), and so is every rule that it must satisfy together with other
settings: a function below the section's class, with `@rule("section.setting")`. `rules.violations` calls them, and
tests/unit/config/test_rules.py has a configuration that breaks each.

    min_valid: int = setting(2, description="Samples of a group that must be valid ...", unit="samples", ge=1)

    @rule("rollout.min_valid")
    def a_group_can_be_valid(c: Config) -> Iterator[Fault]:
        if c.rollout.n_samples_per_prompt < c.rollout.min_valid:
            yield "rollout.min_valid = ... exceeds rollout.n_samples_per_prompt = ...: every group would fail. ..."

A program sees a `Problem` with the code `a_group_can_be_valid` and the setting `rollout.min_valid`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field
from pydantic.fields import FieldInfo

from ..errors import Problem

if TYPE_CHECKING:
    from .schema import Config


@dataclass(frozen=True, slots=True)
class Resume:
    """What happens if a run resumes from a checkpoint that was made with another value.

    A setting that names no policy has its section's, `Section.RESUME`, which is "reported" where a section has none.

    Attributes:
        policy: "allowed": nothing, since the setting only says where things are or how fast they go.
            "reported": the run goes on and lists the change at its start.
            "refused": the run ends before anything is loaded.
        reason: Why the change is refused, or under which condition another policy holds.
    """

    policy: Literal["allowed", "reported", "refused"]
    reason: str = ""


ALLOWED = Resume("allowed")
REPORTED = Resume("reported")


def refused(reason: str) -> Resume:
    """Return the policy of a setting that a resumed run must not change."""
    return Resume("refused", reason)


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the configuration under which a setting has an effect.

    Attributes:
        text: The condition in words that follow "only": "with actor.optim = adam".
        holds: Returns True if the condition is met. For a setting of an environment, its reward or its filters, it is
            called once per environment, with a configuration that has this environment only.
        of_run: True if the condition is about the run as a whole, so that it is never asked per environment.
        of_default: True if not even the setting's default says what holds where the condition is not met.
    """

    text: str
    holds: Callable[[Config], bool]
    of_run: bool = False
    of_default: bool = False


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """What the project knows about a setting besides what pydantic does. See the table in the module's docstring.

    Attributes:
        unit: Unit of the value: "groups", "seconds".
        active_when: Conditions that must all hold for the setting to have an effect.
        resume: None: the policy of the section.
        openrlhf: True if OpenRLHF has the same setting under the same name; or OpenRLHF's name for it.
        names: What a value, an item of a list or (of "user_code_keys") a key may name: functions and classes of the
            user, or files that are read. Such names are resolved where the user wrote them.
        fine_tuning: True if `openrlhf-tir sft` reads the setting. None: as the section says.
        short: Its effect in a few words, for the help on one screen. "": the first sentence of the description serves.
    """

    unit: str = ""
    active_when: tuple[Condition, ...] = ()
    resume: Resume | None = None
    openrlhf: bool | str = False
    names: Literal["", "user_code", "user_code_keys", "input_files"] = ""
    fine_tuning: bool | None = None
    short: str = ""


def setting(
    default: Any = ...,
    *,
    description: str,
    unit: str = "",
    active_when: Condition | tuple[Condition, ...] = (),
    resume: Resume | None = None,
    openrlhf: bool | str = False,
    names: Literal["", "user_code", "user_code_keys", "input_files"] = "",
    fine_tuning: bool | None = None,
    short: str = "",
    **constraints: Any,
) -> Any:
    """Declare a setting: a pydantic field with the project's metadata.

    Args:
        default: The default value; left out if `constraints` have a default_factory.
        description: What the setting does, in sentences. `--help-all` and the reference page show it.
        unit: See SettingInfo, as for the arguments below.
        active_when: One condition or several.
        resume: As above.
        openrlhf: As above.
        names: As above.
        fine_tuning: As above.
        short: As above.
        constraints: default_factory, and pydantic's bounds: ge, gt, le, lt, min_length, max_length.
    """
    conditions = (active_when,) if isinstance(active_when, Condition) else active_when
    field = Field(default, description=description, **constraints)
    field.metadata.append(SettingInfo(unit, conditions, resume, openrlhf, names, fine_tuning, short))
    return field


def info_of(field: FieldInfo) -> SettingInfo:
    """Return the metadata of a field; the defaults for a field that was declared without any."""
    return next((entry for entry in field.metadata if isinstance(entry, SettingInfo)), SettingInfo())


class About(NamedTuple):
    """What is wrong with another setting than the one that the rule is declared for.

    Attributes:
        setting: Its dotted name.
        message: Fact, value and remedy.
    """

    setting: str
    message: str


Fault = str | About
"""What does not work together, in a sentence with fact, value and remedy."""
Check = Callable[["Config"], Iterator[Fault]]
Command = Literal["train", "sft"]


class Rule(NamedTuple):
    """A rule between settings.

    Attributes:
        name: Stable name, the code of its problems: "depth_fills_a_batch".
        setting: The setting that the rule is about.
        check: The function.
        reads_estimator: True if it reads the properties of the estimator. It is then checked once the user's code is
            loaded, if the estimator is a user's own.
        commands: The commands whose configuration must satisfy it.
    """

    name: str
    setting: str
    check: Check
    reads_estimator: bool
    commands: tuple[Command, ...]

    def problems(self, c: Config) -> Iterator[Problem]:
        """Yield a problem for each way in which a configuration breaks the rule."""
        for fault in self.check(c):
            about = fault if isinstance(fault, About) else About(self.setting, fault)
            yield Problem(about.message, self.name, about.setting)


RULES: list[Rule] = []
"""Every rule, in the order in which the sections are imported (schema.py)."""


def rule(
    setting: str, *, reads_estimator: bool = False, commands: tuple[Command, ...] = ("train",)
) -> Callable[[Check], Check]:
    """Register a function as a rule that `setting` must satisfy together with other settings.

    What can be said of a value by itself is a bound or a validator of its field.

    Args:
        setting: The setting's dotted name.
        reads_estimator: True if the function calls `conditions.estimator_of`.
        commands: The commands whose configuration must satisfy it.
    """

    def register(check: Check) -> Check:
        RULES.append(Rule(check.__name__, setting, check, reads_estimator, commands))
        return check

    return register
