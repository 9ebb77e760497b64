"""Reward signatures: whose convention a reward function follows, told by the names of its parameters.

    ours       (trajectory, task, context) -> RewardParts or a number
    verl       (data_source, solution_str, ground_truth, extra_info) -> a number, or a dict with `score`
    verl_batch (data_sources, solution_strs, ground_truths, extra_infos) -> a list of these
    trl        (prompts, completions, **columns) -> a list of numbers or None

verl and TRL call by keyword, so the order does not matter and a function may take fewer of these. A function that fits
none, or could be of several, is refused before a run: called the wrong way it would fail on the first sample, or worse,
not fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Name = Literal["ours", "verl", "verl_batch", "trl"]

VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
VERL_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
VERL_SERVED = ("reward_router_address", "reward_model_tokenizer")
"""What verl passes besides where it serves a reward model; here there is none, so they are None."""
TRL = ("prompts", "completions", "completion_ids")
TRL_GIVEN = (*TRL, "trainer_state", "log_extra", "log_metric", "environments")
"""What TRL passes besides the columns of a row."""
OPENRLHF = {"queries", "prompts", "labels"}
TEXTS = frozenset(
    {"prompt", "prompts", "completion", "completions", "query", "queries", "response", "responses"}
    | {"solution", "solutions", "answer", "answers", "label", "labels"}
    | {"ground_truth", "ground_truths", "reference", "references"}
)
"""Names of parameters that no function of our own convention has: it is given objects, not texts."""
FORMS = (
    "The forms that are understood: (trajectory, task, context) of this project;"
    " (data_source, solution_str, ground_truth, extra_info) of verl, or the same in the plural;"
    " (prompts, completions, **columns) of TRL; OpenRLHF's reward_func(queries, prompts, labels) is reward.remote_url"
)


@dataclass(frozen=True)
class Convention:
    """How a reward function is called."""

    name: Name
    parameters: tuple[str, ...] = ()
    """The names that it can be given; with `any_keyword` others as well."""
    any_keyword: bool = False
    required: tuple[str, ...] = ()
    """The names without a default."""
    is_async: bool = False

    @property
    def described(self) -> str:
        """The convention in words, for the start of a run."""
        return {
            "ours": "this project's (trajectory, task, context)",
            "verl": "verl's (data_source, solution_str, ground_truth, extra_info)",
            "verl_batch": "verl's batch form (data_sources, solution_strs, ground_truths, extra_infos)",
            "trl": "TRL's (prompts, completions, **columns)",
        }[self.name]

    def takes(self, name: str) -> bool:
        """Return True if a value of this name can be passed."""
        return self.any_keyword or name in self.parameters

    def columns_needed(self) -> tuple[str, ...]:
        """Return the columns of a row without which a function of TRL's cannot be called."""
        return tuple(n for n in self.required if n not in TRL_GIVEN) if self.name == "trl" else ()

    def chosen(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the values that the function takes."""
        return {name: value for name, value in values.items() if self.takes(name)}


class UnknownSignature(ValueError):
    """A function that can be called in no known way, or in several; the message is the end of a sentence."""


def convention_of(function: Callable[..., Any], options: Collection[str] | None = None) -> Convention:
    """Return the convention of a reward function.

    Args:
        function: A function, or an object with `__call__`.
        options: Names that the settings give besides (verl's reward_kwargs); None: not known, so that none is missing.

    Raises:
        UnknownSignature: It fits none of the conventions, or could be of several.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return Convention("ours")  # a builtin: it cannot be asked
    is_async = _is_async(function)
    parameters = signature.parameters
    positional_only = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY]
    by_keyword = tuple(n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    required = tuple(n for n in by_keyword if parameters[n].default is inspect.Parameter.empty)
    any_keyword = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    shown = f"{getattr(function, '__name__', type(function).__name__)}{signature}"

    def made(name: Name, given: Collection[str], whose: str) -> Convention:
        if positional_only:
            raise UnknownSignature(
                f"{shown} has parameters that can only be given by position ({', '.join(positional_only)}), and {whose}"
                f" calls by keyword. {FORMS}"
            )
        if name == "trl" and "environments" in required:
            raise UnknownSignature(
                f"{shown} requires the environments of TRL's environment_factory, and here an environment is in a"
                " process of its own. Let it give the reward itself (reward.name = 'env'), or read the response"
            )
        missing = [n for n in required if n not in given and n not in (options or ())]
        if missing and options is not None and name != "trl":  # of TRL's the data say whether the columns are there
            raise UnknownSignature(
                f"{shown} looks like {whose}'s reward function, and also requires {', '.join(missing)}, which {whose}"
                f" does not pass. Give each a default, or a value in reward.options (verl's reward_kwargs). {FORMS}"
            )
        return Convention(name, by_keyword, any_keyword, required, is_async)

    names = set(by_keyword)
    plural = len(names & {*VERL_BATCH})
    singular = len(names & {*VERL})
    is_trl = "completions" in names
    if plural and singular:
        raise UnknownSignature(f"{shown} has names of verl's form in the singular and in the plural. {FORMS}")
    if is_trl and ("solution_str" in names or plural):
        raise UnknownSignature(f"{shown} has names of verl's form and of TRL's. {FORMS}")
    if is_trl:  # a column may be called ground_truth, data_source or extra_info
        return made("trl", TRL_GIVEN, "TRL")
    if plural >= 2 or "solution_strs" in names:
        return made("verl_batch", (*VERL_BATCH, *VERL_SERVED), "verl")
    if "solution_str" in names or (singular >= 2 and any_keyword):
        return made("verl", (*VERL, *VERL_SERVED), "verl")
    if names >= OPENRLHF:
        raise UnknownSignature(
            f"{shown} is OpenRLHF's reward function. Set reward.remote_url to its file instead of reward.name, and call"
            " the function reward_func"
        )
    return _ours(signature, shown, is_async)


def _is_async(function: Callable[..., Any]) -> bool:
    function = inspect.unwrap(function)
    called = None if inspect.isclass(function) else getattr(type(function), "__call__", None)  # noqa: B004
    inner = getattr(function, "func", None)  # functools.partial
    return any(inspect.iscoroutinefunction(f) for f in (function, called, inner) if f is not None)


def _ours(signature: inspect.Signature, shown: str, is_async: bool) -> Convention:
    """Return our own convention if three objects can be given by position, and the names do not speak of texts."""
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_position = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    named = [p.name.lstrip("_") for p in positional[:3]]
    annotated = bool(positional) and "Trajectory" in str(positional[0].annotation)
    if any_position and not named:
        raise UnknownSignature(f"{shown} does not say what it takes, so nobody can tell how to call it. {FORMS}")
    strange = [name for name in named if name in TEXTS] if not annotated else []
    if strange:
        raise UnknownSignature(
            f"{shown} takes {', '.join(strange)}, and it is not clear what it is to be called with. {FORMS}"
        )
    try:
        signature.bind(None, None, None)
    except TypeError as e:
        raise UnknownSignature(f"{shown} cannot be called as it would be: {e}. {FORMS}") from None
    return Convention("ours", tuple(named), is_async=is_async)
