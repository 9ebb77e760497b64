"""Rules of pipeline.early_accumulation, with which the learner begins on a part of a batch: what that does not go with,
each with the fact that forbids it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .conditions import estimator_of

if TYPE_CHECKING:
    from ..schema import Config
    from ..setting import Fault


def a_part_of_a_batch_can_be_trained(c: Config) -> Iterator[Fault]:
    """Yield what would need the whole batch before its first gradient, the estimator apart."""
    if c.pipeline.early_accumulation == "off":
        return
    early = "pipeline.early_accumulation = 'on'"
    if c.pipeline.drain:
        yield (
            f"{early} does not go with pipeline.mode = '{c.pipeline.mode}', whose pushes wait for every running group:"
            " a batch is complete before its step could begin. Leave it off, or use mode = 'pipeline'."
        )
    if c.updates_per_batch > 1:
        yield (
            f"{early} begins the batch's one update early, and a batch makes {c.updates_per_batch} (train.batch_size,"
            " train.max_epochs), whose samples are drawn from all of it. Make one update per batch, or leave it off."
        )
    if c.algo.kl.init_coef and not c.algo.kl.use_loss:
        yield (
            f"{early} leaves no KL in the reward, whose mean over the batch moves its coefficient. Set"
            " algo.kl.use_loss, or leave it off."
        )
    for name, value in {"actor.optim": "muon", "ds.param_dtype": "fp16", "ds.zero_stage": 2}.items():
        section, _, field = name.partition(".")
        if getattr(getattr(c, section), field) == value:
            yield (
                f"{early} divides the summed gradients at the optimiser's step, which DeepSpeed does for Adam in bf16"
                f" or fp32 with ZeRO-3; {name} = {value!r}. Change it, or leave pipeline.early_accumulation off."
            )
    # Each term of the loss is a mean over tokens (True) or over sequences (False).
    terms_by_token = {c.loss_by_token}
    if c.actor.entropy_coef:
        terms_by_token.add(True)
    if c.algo.kl.init_coef and c.algo.kl.use_loss:
        terms_by_token.add(c.loss_agg_mode != "seq-mean-token-mean")
    aux_loss_differs = c.actor.aux_loss_coef and (c.loss_sum_norm or not c.loss_by_token)
    if len(terms_by_token) > 1 or aux_loss_differs:
        yield (
            f"{early} divides the whole loss by one number when the batch is complete, and here it is a mean over"
            " tokens in one term (entropy, auxiliary loss) and over sequences in another. Set actor.loss_agg_mode ="
            " 'token-mean', leave the other term out, or leave it off."
        )


def a_group_has_its_advantages(c: Config) -> Iterator[Fault]:
    """Yield that the estimator makes the advantages of a group of more than the group."""
    if c.pipeline.early_accumulation == "off" or not estimator_of(c).whole_batch:
        return
    from ...algorithms.advantages import ESTIMATORS  # numpy; `--help` does not need it

    others = ", ".join(name for name, estimator in ESTIMATORS.items() if not estimator.whole_batch)
    yield (
        "pipeline.early_accumulation = 'on' begins before the batch is complete, and algo.advantage.estimator ="
        f" {c.algo.advantage.estimator!r} makes advantages of the whole batch, or does not say that a group is enough."
        f" Use one that compares within a group ({others}); declare your own as Estimator(function, whiten=False,"
        " by_group=True) if it does; or leave it off."
    )
