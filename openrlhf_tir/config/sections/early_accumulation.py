"""Rules of pipeline.early_accumulation: the learner begins on a part of a batch. What that does not go with, each with
the fact that forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..schema import Config

WHOLE_BATCH = ("reinforce", "reinforce_baseline", "flash_reinforce", "gae")
"""Our estimators whose advantages need the whole batch (Estimator.whole_batch); a test compares them with the registry,
which is above this module."""


def violations(c: Config) -> Iterator[str]:
    """What would need the whole batch before its first gradient. (An estimator of one's own says so itself, which
    preflight asks.)"""
    if c.pipeline.early_accumulation == "off":
        return
    said, estimator = "pipeline.early_accumulation = 'on'", c.algo.advantage.estimator
    if c.pipeline.drain:
        yield (
            f"{said} does not go with pipeline.mode = '{c.pipeline.mode}', whose pushes wait for every running group: a"
            " batch is whole before its step could begin. Leave it off, or use mode = 'pipeline'."
        )
    if estimator in WHOLE_BATCH:
        yield (
            f"{said} begins before the batch is whole, and algo.advantage.estimator = {estimator!r} makes advantages of"
            " the whole batch. Use one that compares within a group (group_norm, dr_grpo, rloo, opo), or leave it off."
        )
    if (k := c.updates_per_batch) > 1:
        yield (
            f"{said} begins the batch's one update early, and a batch makes {k} (train.batch_size,"
            " train.max_epochs), whose samples are drawn from all of it. Make one update per batch, or leave it off."
        )
    if c.algo.kl.init_coef and not c.algo.kl.use_loss:
        yield (
            f"{said} leaves no KL in the reward, whose mean over the batch moves its coefficient. Set algo.kl.use_loss,"
            " or leave it off."
        )
    for name, value in {"actor.optim": "muon", "ds.param_dtype": "fp16", "ds.zero_stage": 2}.items():
        section, _, field = name.partition(".")
        if getattr(getattr(c, section), field) == value:
            yield (
                f"{said} divides the summed gradients at the optimiser's step, which DeepSpeed does for Adam in bf16 or"
                f" fp32 with ZeRO-3; {name} = {value!r}. Change it, or leave {said.partition(' ')[0]} off."
            )
    by_token = {c.loss_by_token}
    if c.actor.entropy_coef:
        by_token.add(True)
    if c.algo.kl.init_coef and c.algo.kl.use_loss:
        by_token.add(c.actor.loss_agg_mode != "seq-mean-token-mean")
    if len(by_token) > 1 or (c.actor.aux_loss_coef and (c.loss_sum_norm or not c.loss_by_token)):
        yield (
            f"{said} divides the whole loss by one number when the batch is whole, and here it is a mean over tokens in"
            " one term (entropy, auxiliary loss) and over sequences in another. Set actor.loss_agg_mode ="
            " 'token-mean', leave the other term out, or leave it off."
        )
