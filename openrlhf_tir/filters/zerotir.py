"""ZeroTIR's filters of samples and groups, on the values that the reward `zerotir` records in `parts`.

Sources: env/math/math_tir_filter_fn_utils.py, exp_statistics.length_balance and ppo_trainer_async.py of ZeroTIR's code.
The names of the values, spelling included, are those of that code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..types import KEEP, Group, Verdict

Facts = Mapping[str, float]
"""What the reward `zerotir` recorded about a sample, by name."""
Key = TypeVar("Key", bound=Hashable)

MAX_PPL = 5.0
"""Perplexity under the base model above which a sample is masked."""
BIN_TOKENS = 1000
"""Width of a bin of `length_balance`, in tokens."""
MAX_BALANCED_TOKENS = 31_000
"""Length from which on `length_balance` has no bin."""
MIN_BIN_ACCURACY = 0.05
MAX_FAILED = 0.4


def mask_reason(facts: Facts, *, base_ppl: float | None, max_tokens: int) -> str:
    """Return why a sample's loss is masked; empty if it is trained.

    Args:
        facts: What the reward recorded about the sample.
        base_ppl: Perplexity of the sample under the base model; None where it is not known.
        max_tokens: Length from which on a response counts as cut off.
    """
    correct = facts["answer_rewards"] > 0.5
    malformed = facts["format_answer"] > 0.5
    cut_off = facts["length_rewards"] >= max_tokens or facts["truncated"] > 0.5
    # Code blocks, outputs, code fences and executions must be equally many: otherwise the model wrote outputs itself.
    counts = ("code_count", "output_count", "partial_code_count", "code_exection_times")
    faked = len({facts[name] for name in counts}) > 1
    some_code_ran = facts["code_exection_all_failed"] < 1
    repetitive = facts["repeatness"] > 0.2 or facts["repetition_penalty"] > 0.6
    if cut_off and not correct:
        return "cut_off"
    if facts["other"] > 0.5:  # it ended by neither the length limit nor a stop string
        return "strange_end"
    if faked and (correct or (not malformed and some_code_ran)):
        return "faked_output"
    if base_ppl is not None and base_ppl > MAX_PPL:
        return "improbable"
    if malformed and repetitive:
        return "rambling"
    return ""


def verifiers_failed(facts: Facts) -> bool:
    """Return True if neither verifier gave a verdict."""
    return facts["rule_eval_fails"] > 0.5 and facts["model_eval_fails"] > 0.5


def too_many_failed(group: Sequence[Facts]) -> bool:
    """Return True if more than MAX_FAILED of a group's samples have no verdict."""
    return sum(map(verifiers_failed, group)) > MAX_FAILED * len(group)


def verifiers(group: Group) -> Verdict:
    """The filter `verifiers`: drop a group if too many of its samples have no verdict.

    A check that missed its deadline counts as one without a verdict. A model verifier that fails needs no filter: it
    fails the sample itself.
    """
    facts = []
    for trajectory in group.valid:
        missed_deadline = trajectory.parts.get("verify_timeout")
        no_verdict = {"rule_eval_fails": 1.0, "model_eval_fails": 1.0} if missed_deadline else {}
        facts.append(trajectory.parts | no_verdict)
    return Verdict(False, "verifiers_failed") if too_many_failed(facts) else KEEP


def length_balance(groups: Mapping[Key, Iterable[tuple[int, float]]]) -> set[Key]:
    """Return the groups that have a sample in a good bin of lengths.

    A bin is good if more than 5 % of its samples are right. (ZeroTIR's code says `>=`, of a share that it lowers by
    adding 1e-10 to the number of samples.)

    Args:
        groups: Key of each group -> (model tokens, answer reward) of each sample.
    """
    bins: dict[int, list[tuple[Key, float]]] = defaultdict(list)
    for key, samples in groups.items():
        for length, answer_reward in samples:
            if length < MAX_BALANCED_TOKENS:
                bins[length // BIN_TOKENS].append((key, answer_reward))
    balanced: set[Key] = set()
    for samples_of_bin in bins.values():
        accuracy = sum(reward for _, reward in samples_of_bin) / (len(samples_of_bin) + 1e-10)
        if accuracy >= MIN_BIN_ACCURACY:
            balanced.update(key for key, _ in samples_of_bin)
    return balanced
