"""Join a recipe with what wins over it: the recipe that extends it, or flags.

Tables are joined field by field, and lists are replaced. What another value replaces takes its options along:

    [reward]  name = "toolrl", options = {...}     +  name = "artist"      ->  name = "artist"
    [env]     protocol = "searchr1", options = ... +  protocol = "tagged"  ->  protocol = "tagged"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .catalog import ENVS
from .toml_file import UNSET


def join_recipes(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Join a recipe's table with one that wins over it: of a recipe that extends it, or of the flags.

    A reward or a turn protocol that `over` names replaces that of `base` together with its options, which another one
    would refuse.

    Args:
        base: Nested sections.
        over: The same, with what wins.
    """
    kept = dict(base)
    if "env" in kept:
        kept["env"] = _without_replaced_protocol([kept["env"]], [over.get("env", {})])
    if "reward" in kept:
        kept["reward"] = _without_replaced_reward(kept["reward"], over.get("reward", {}))
    if ENVS in kept:
        commons = base.get("env", {}), over.get("env", {})
        kept[ENVS] = {
            name: _join_environment(env, over.get(ENVS, {}).get(name, {}), *commons) for name, env in kept[ENVS].items()
        }
    return _merge(kept, over)


def _join_environment(
    base: Mapping[str, Any], over: Mapping[str, Any], common_base: Mapping[str, Any], common_over: Mapping[str, Any]
) -> dict[str, Any]:
    """Join the tables of one environment, which takes the protocol that it does not set from the [env] of both."""
    kept = _without_replaced_protocol([base, common_base], [over, common_over])
    if "reward" in kept:
        kept["reward"] = _without_replaced_reward(kept["reward"], over.get("reward", {}))
    return _merge(kept, over)


def _without_replaced_protocol(base: Sequence[Mapping[str, Any]], over: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the first section of `base` without the options of a protocol that `over` replaces.

    Args:
        base: The section, and the one from which it takes what it leaves unset.
        over: The same sections of the table that wins.
    """
    before = next(filter(None, (_value_of(section, "protocol") for section in base)), None)
    joined = [{**section, **winner} for section, winner in zip(base, over, strict=True)]
    now = next(filter(None, (_value_of(section, "protocol") for section in joined)), None)
    is_replaced = before is not None and now != before
    return {key: value for key, value in base[0].items() if not (is_replaced and key == "options")}


def _without_replaced_reward(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return [reward] without what `over` replaces: a weighted sum by a name, which it would hide, a name by a sum or
    another name."""
    joined = {**base, **over}
    left_behind: list[str] = []
    if _value_of(base, "group") not in (None, _value_of(joined, "group")):
        left_behind.append("group_options")
    if _value_of(base, "weights"):
        takes_back = over.get("weights", {}) in (None, UNSET)
        is_replaced = takes_back or (bool(_value_of(over, "name")) and not over.get("weights"))
    else:
        is_replaced = bool(_value_of(over, "weights")) or _value_of(base, "name") not in (
            None,
            _value_of(joined, "name"),
        )
    if is_replaced:
        left_behind += ["weights", "options"]
    return {key: value for key, value in base.items() if key not in left_behind}


def _value_of(section: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field that a section sets; None if it is absent, None or "unset"."""
    value = section.get(field)
    return None if value == UNSET else value


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested tables: `over` wins, tables are joined, lists are replaced."""
    out = dict(base)
    for key, value in over.items():
        out[key] = (
            _merge(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), Mapping) else value
        )
    return out
