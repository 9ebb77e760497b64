"""OpenRLHF's flag names on a command line of ours: each is refused with the setting that it is here.

They are not accepted as other names of our settings, since a command line that was written for OpenRLHF also counts on
OpenRLHF's defaults (PPO with one sample, no filter, no tool), which are not this project's. What takes them together is
`openrlhf-tir import-openrlhf`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .catalog import known_keys
from .openrlhf_flags import ALL_RULES, Becomes, Implied, Only, Refused, Same
from .openrlhf_renamed import GONE, NAMES, OLD_CORRECTION, SWITCHES_WITH_A_VALUE

IMPORT = "openrlhf-tir import-openrlhf"


def is_foreign(name: str) -> bool:
    """Return True for a flag that OpenRLHF has or had, and this project does not."""
    names = (ALL_RULES, NAMES, SWITCHES_WITH_A_VALUE, OLD_CORRECTION, GONE)
    return any(name in table for table in names) and name not in known_keys()


def answers(flags: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return what is said of OpenRLHF's flags, given as (name, values): what to do with all of them, then each."""
    lines = [f"--{name} is {meaning(name, values)}" for name, values in flags]
    if not lines:
        return []
    return [
        f"{len(lines)} of the flags have OpenRLHF's names, and its defaults are others. Make a recipe of the whole"
        f" command line or script: `{IMPORT} -- FLAGS...`, `{IMPORT} SCRIPT.sh`; or write each as it is named here.",
        *lines,
    ]


def meaning(name: str, values: Sequence[str]) -> str:
    """Return what a flag of OpenRLHF is here, behind "--name is"."""
    if name in GONE:
        return f"a flag that OpenRLHF once had. There is none here: {GONE[name]}"
    if name in SWITCHES_WITH_A_VALUE:
        new, value = SWITCHES_WITH_A_VALUE[name]
        values = [value]
    else:
        new = OLD_CORRECTION.get(name) or NAMES.get(name, name)
    rule = ALL_RULES[new]
    origin = "OpenRLHF's name" if name == new else "OpenRLHF's name (up to 0.10.1)"
    match rule:
        case Refused(reason):
            return f"{origin}. It is not taken over. {reason}"
        case Only(value, reason):
            return f"{origin}. Only {value} is possible here. {reason}"
        case Implied(reason):
            return f"{origin}. It needs no flag here: {reason}. Leave it out."
        case Same():
            # a key belongs into no log
            shown = [] if new == "logger.wandb.key" else values
            return f"{origin}. Here it is {' '.join([f'--{new}', *shown])}."
        case Becomes() if new == "train.async_queue_size":
            return (
                f"{origin}, which counts batches. Here it is --pipeline.mode pipeline_drain with"
                " --pipeline.max_staleness, in updates: (N + 1) * k - 1 for N batches of k updates each."
            )
        case Becomes():
            return f"{origin}. Here it is {_settings(rule, values)}."
    raise AssertionError(rule)


def _settings(rule: Becomes, values: Sequence[str]) -> str:
    try:
        settings = rule.to(values or ["VALUE"])
    except (KeyError, ValueError, IndexError):
        return f"another setting. Its values are {rule.values}"
    words = [
        f"--{key} {' '.join(map(str, value)) if isinstance(value, list | tuple) else value}".rstrip()
        for key, value in settings.items()
    ]
    return " ".join(words) or "the default"
