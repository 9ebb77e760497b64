"""ZeroTIR's sample filters and length balance, on the facts that `rewards.zerotir.score` records.

Sources: env/math/math_tir_filter_fn_utils.py, exp_statistics.length_balance and ppo_trainer_async.py of the reference.
A dropped *sample* stays in its group's statistics: only its loss is masked, after the advantages are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..types import KEEP, Group, Verdict

Facts = Mapping[str, float]
Key = TypeVar("Key", bound=Hashable)

MAX_PPL = 5.0
MAX_REPEATNESS = 0.05
BIN, LAST_BIN = 1000, 31_000
MIN_BIN_ACCURACY = 0.05
MAX_FAILED = 0.4


def why_dropped(facts: Facts, *, base_ppl: float | None, max_tokens: int) -> str:
    """Why a sample's loss is masked, "" where it is trained. `base_ppl` is its perplexity under the base model, where
    that is known.

    Wrong and cut off; ended by neither length nor stop; code whose blocks, outputs and fences do not match, where it is
    correct or well-formed code that ran; improbable; malformed and repetitive.
    """
    correct = facts["answer_rewards"] > 0.5
    malformed = facts["format_answer"] > 0.5
    cut_off = facts["length_rewards"] >= max_tokens or facts["truncated"] > 0.5
    counts = ("code_count", "output_count", "partial_code_count", "code_exection_times")
    faked = len({facts[name] for name in counts}) > 1
    ran = facts["code_exection_all_failed"] < 1
    repetitive = facts["repeatness"] > 0.2 or facts["repetition_penalty"] > 0.6
    reasons = {
        "cut_off": cut_off and not correct,
        "strange_end": facts["other"] > 0.5,
        "faked_output": (correct and faked) or (not malformed and faked and ran),
        "improbable": base_ppl is not None and base_ppl > MAX_PPL,
        "rambling": malformed and repetitive,
    }
    return next((reason for reason, drops in reasons.items() if drops), "")


def is_quality(facts: Facts, repeatness_threshold: float = MAX_REPEATNESS, **label: object) -> bool:
    """Return True for a right and hardly repetitive sample, which the reference counts for each group.

    `label` is what a row's label holds, of which its own threshold counts.
    """
    return facts["answer_rewards"] > 0.05 and facts["repeatness"] <= repeatness_threshold


def verifiers_failed(facts: Facts) -> bool:
    """Neither verifier gave a verdict."""
    return facts["rule_eval_fails"] > 0.5 and facts["model_eval_fails"] > 0.5


def too_many_failed(group: Sequence[Facts], max_share: float = MAX_FAILED) -> bool:
    """A group is not used when more than 40 % of its samples have no verdict."""
    return sum(map(verifiers_failed, group)) > max_share * len(group)


def verifiers(max_share: float) -> Callable[[Group], Verdict]:
    """Filter "verifiers". A check that missed its deadline gave no verdict either; a model verifier that fails fails
    the sample itself."""

    def judge(group: Group) -> Verdict:
        facts = [
            t.parts | ({"rule_eval_fails": 1.0, "model_eval_fails": 1.0} if t.parts.get("verify_timeout") else {})
            for t in group.valid
        ]
        return Verdict(False, "verifiers_failed") if too_many_failed(facts, max_share) else KEEP

    return judge


def length_balance(groups: Mapping[Key, Iterable[tuple[int, float]]]) -> set[Key]:
    """Groups with a sample in a good bin, from (model tokens, answer reward) of each sample.

    Bins are 1000 tokens wide; good is one of which more than 5 % is right (the reference says >=, of a share lowered by
    1e-10). From 31,000 tokens on there is no bin.
    """
    bins: dict[int, list[tuple[Key, float]]] = defaultdict(list)
    for key, samples in groups.items():
        for length, answer in samples:
            if length < LAST_BIN:
                bins[length // BIN].append((key, answer))
    good = [
        members for members in bins.values() if sum(a for _, a in members) / (len(members) + 1e-10) >= MIN_BIN_ACCURACY
    ]
    return {key for members in good for key, _ in members}
