"""Rules across the sections of a config: what each section accepts by itself and does not work together. Checked before
anything is loaded.

Each rule gives fact, value and remedy; all that are broken are told at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import environments
from .engine_args import pipeline_stages
from .sections import colocation, early_accumulation, sequence_parallel

if TYPE_CHECKING:
    from .schema import Config

CRITIC_FREE = ("reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo", "opo", "flash_reinforce")
"""Our estimators that have no critic; a test compares them with the registry, which is above this module."""


def violations(c: Config) -> Iterator[str]:
    yield from _batch(c)
    yield from _lengths(c)
    yield from _partition(c)
    yield from _data(c)
    wrong = [*environments.violations(c)]
    yield from wrong or _methods(c)
    yield from _method(c)
    yield from _policy(c)
    yield from _routing(c)
    yield from _roles(c)
    yield from sequence_parallel.violations(c)
    yield from colocation.violations(c)
    yield from _pipeline(c)
    yield from _pushes(c)
    yield from _fast_lane(c)
    yield from early_accumulation.violations(c)
    yield from _ends(c)
    yield from _reward(c)


def _batch(c: Config) -> Iterator[str]:
    b, n, ranks = c.rollout.batch_size, c.rollout.n_samples_per_prompt, c.shards
    samples = b * n
    size, k, steps = c.train.batch_size, c.updates_per_batch, c.train.max_steps
    if size is not None and (samples % size or size < ranks):
        why = (
            f"less than the {ranks} learner ranks that share an update"
            if size < ranks
            else "not a divisor of the samples of a batch"
        )
        yield (
            f"train.batch_size = {size} is {why}; rollout.batch_size * rollout.n_samples_per_prompt = {b} * {n} ="
            f" {samples}. Leave it unset for one update per batch, or use another divisor of that."
        )
    elif steps % k:
        yield (
            f"train.max_steps = {steps} updates end in the middle of a batch, of which each makes {k} ({_cut(c)}). "
            f"Use {' or '.join(str(n * k) for n in (steps // k, steps // k + 1) if n)}."
        )
    if samples % ranks:
        yield (
            f"{b} prompts * {n} samples = {samples} trajectories do not divide over {ranks} learner ranks. "
            "Change rollout.batch_size or actor.num_gpus_per_node."
        )
    if n < c.rollout.min_valid:
        yield (
            f"rollout.min_valid = {c.rollout.min_valid} exceeds rollout.n_samples_per_prompt = {n}:"
            " every group would fail. Lower min_valid."
        )


def _methods(c: Config) -> Iterator[str]:
    """Each environment's reward and filters work together."""
    for e in c.environments.values():
        of = "" if e.section == "env" else f"{e.section}."
        lo, hi = e.filter.accuracy_range
        if not 0 <= lo < hi <= 1:
            yield f"{of}filter.accuracy_range = ({lo}, {hi}) is no range within 0..1. Use lo < hi, e.g. [0.0, 1.0]."
        rewards = list(e.reward.weights) or [e.reward.name]
        for setting, value in (
            (f"{of}filter.sample", e.filter.sample),
            *((f"{of}filter.names", name) for name in e.filter.order),
        ):
            if value in ("zerotir", "verifiers") and "zerotir" not in rewards:
                yield (
                    f"{setting} has {value!r}, which reads what reward.name = 'zerotir' records, and the reward is"
                    f" {', '.join(rewards)}. Leave it out."
                )
        if c.rollout.early_stop and "accuracy" not in e.filter.order:
            yield (
                f"rollout.early_stop gives groups up that filter 'accuracy' is sure to drop, and {of}filter.names ="
                f" {e.filter.order} has none. Switch one of them."
            )


def _data(c: Config) -> Iterator[str]:
    probs, names = c.data.prompt_probs, c.data.datasets
    if probs is None or not names:
        return
    if len(probs) != len(names):
        yield (
            f"data.prompt_probs has {len(probs)} numbers ({', '.join(f'{p:g}' for p in probs)}), data.prompt_dataset"
            f" {len(names)} data sets ({', '.join(names) or 'none'}). Give one number for each data set."
        )
    elif bad := [p for p in probs if not p > 0]:
        yield (
            f"data.prompt_probs has {bad[0]:g}, and a data set that is never drawn from would be lost. Use numbers"
            " above 0, or leave the data set out."
        )


def _method(c: Config) -> Iterator[str]:
    if c.actor.policy_loss and c.actor.policy_loss_type != "ppo":
        yield (
            f"actor.policy_loss = {c.actor.policy_loss!r} replaces the loss, so actor.policy_loss_type ="
            f" '{c.actor.policy_loss_type}' would do nothing. Leave it at 'ppo'."
        )
    if c.train.agent_func_path and c.rollout.agent == "external":
        yield (
            f"train.agent_func_path = {c.train.agent_func_path!r} writes the responses itself, and with rollout.agent ="
            " 'external' programs from outside do. Leave one of them out."
        )
    if c.algo.advantage.estimator == "gae" and c.rollout.agent == "external":
        yield (
            "algo.advantage.estimator = 'gae' judges one chain of tokens, and a session of rollout.agent = 'external'"
            " may have several. Use an estimator without a critic, e.g. reinforce_baseline."
        )
    if c.rollout.early_stop and (c.train.agent_func_path or "remote" in c.reward.used):
        yield (
            "rollout.early_stop counts on rewards that are right or wrong, and an agent file or a remote reward may"
            " give any score. Switch it off."
        )
    yield from _credit(c)
    if c.actor.policy_loss_type == "gspo":
        if c.actor.loss_agg_mode != "token-mean":
            yield (
                f"actor.loss_agg_mode = '{c.actor.loss_agg_mode}' does nothing with actor.policy_loss_type = 'gspo',"
                " whose loss is a mean over sequences. Leave it at token-mean."
            )
        if c.train.env_coef != 1:
            yield (
                f"train.env_coef = {c.train.env_coef:g} would weigh gspo's ratio over a sequence too."
                " Use 1, or another actor.policy_loss_type."
            )


def _credit(c: Config) -> Iterator[str]:
    adv = c.algo.advantage
    if adv.credit != "turn":
        return
    said = "algo.advantage.credit = 'turn' splits the environment's reward over its calls, and"
    wrong = {
        f"algo.advantage.gamma = {adv.gamma:g} discounts by tokens": adv.gamma != 1,
        "algo.advantage.estimator = 'flash_reinforce' compares with the whole batch": (
            adv.estimator == "flash_reinforce"
        ),
        "rollout.agent = 'external' tells nothing of calls": c.rollout.agent == "external",
        "actor.policy_loss_type = 'gspo' trains all tokens of a response by the mean of their advantages": (
            c.actor.policy_loss_type == "gspo"
        ),
    }
    for e in c.environments.values():
        of, rewards = "" if e.section == "env" else f"{e.section}.", list(e.reward.weights) or [e.reward.name]
        wrong |= {
            f"{of}reward.name = {', '.join(rewards)} has no rewards of calls": "env" not in rewards,
            f"{of}reward.env_reduce = '{e.reward.env_reduce}' makes a reward that is not their sum": (
                e.reward.env_reduce != "sum"
            ),
            f"{of}reward.group = {e.reward.group!r} replaces it": e.reward.group is not None,
            f"{of}reward.clip_range = {e.reward.clip_range} cuts their sum": e.reward.clip_range is not None,
            f"{of}reward.stop_properly_penalty_coef = {e.reward.stop_properly_penalty_coef} scales their sum": (
                e.reward.stop_properly_penalty_coef is not None
            ),
        }
    for why in (why for why, so in wrong.items() if so):
        yield f"{said} {why}. Use reward 'env' added up, or credit = 'trajectory'."


def _partition(c: Config) -> Iterator[str]:
    ranks = c.actor.world_size
    if ranks % min(c.ds.zpg, ranks):
        yield (
            f"ds.zpg = {c.ds.zpg} does not divide the {ranks} learner ranks, so ZeRO cannot partition by it. Use a"
            " divisor of actor.num_nodes * actor.num_gpus_per_node, or 1."
        )


def _lengths(c: Config) -> Iterator[str]:
    if c.rollout.max_new_tokens >= c.data.max_len:
        yield (
            f"rollout.max_new_tokens = {c.rollout.max_new_tokens} leaves no room for a prompt in data.max_len ="
            f" {c.data.max_len}. Raise data.max_len."
        )
    if c.vllm.max_model_len is not None and c.vllm.max_model_len < c.data.max_len:
        yield (
            f"vllm.max_model_len = {c.vllm.max_model_len} tokens are fewer than data.max_len = {c.data.max_len}, to"
            " which responses may grow: the engine would refuse them. Leave it unset, or lower data.max_len."
        )


def _policy(c: Config) -> Iterator[str]:
    """The policy that is trained is the one that sampled."""
    if c.pi_old == "engine" and c.algo.advantage.is_correction_level != "off":
        yield (
            f"algo.advantage.is_correction_level = '{c.algo.advantage.is_correction_level}' weighs by pi_old / mu,"
            " which is 1 with actor.pi_old = 'engine'. Leave actor.pi_old unset, or set it to 'learner'."
        )
    r = c.rollout
    if r.agent == "external" and (r.top_p, r.top_k, r.min_p) != (1.0, 0, 0.0):
        yield (
            f"rollout.top_p = {r.top_p:g}, rollout.top_k = {r.top_k}, rollout.min_p = {r.min_p:g} with rollout.agent ="
            " 'external': programs that talk to the model sample from all tokens."
            " Leave the three unset; rollout.temperature is free."
        )
    if c.actor.policy_loss_type == "gspo" and c.algo.advantage.is_correction_level != "off":
        yield (
            f"algo.advantage.is_correction_level = '{c.algo.advantage.is_correction_level}' does nothing with"
            " actor.policy_loss_type = 'gspo': OpenRLHF gates PPO's loss only, and gspo's ratio is to the rollout"
            " policy already. Set it to 'off', or the loss to 'ppo'."
        )


def _routing(c: Config) -> Iterator[str]:
    """Whoever writes the responses brings the experts of their tokens along."""
    if not c.rollout.routing_replay:
        return
    if c.rollout.engine != "vllm":
        yield (
            f"rollout.routing_replay needs rollout.engine = 'vllm'; '{c.rollout.engine}' does not say which experts a"
            " token got. Set one of them otherwise."
        )
    if c.by_agent:
        yield (
            "rollout.routing_replay does not work with agents (rollout.agent = 'external', train.agent_func_path):"
            " their requests come back without the experts of the tokens. Set rollout.routing_replay to false."
        )
    if pipeline_stages(c.vllm.engine_args) > 1:
        yield (
            "rollout.routing_replay does not work with vllm.engine_args.pipeline_parallel_size ="
            f" {pipeline_stages(c.vllm.engine_args)}: vLLM reports the experts of one stage only. Use"
            " vllm.tensor_parallel_size."
        )


def _cut(c: Config) -> str:
    """How a batch comes to its updates."""
    samples = c.rollout.batch_size * c.rollout.n_samples_per_prompt
    return (
        f"rollout.batch_size * rollout.n_samples_per_prompt / train.batch_size = {samples} /"
        f" {c.train.batch_size or samples} = {c.minibatches} mini-batches, train.max_epochs = {c.train.max_epochs}"
    )


def _pushes(c: Config) -> Iterator[str]:
    v = c.vllm
    if v.sync_delta and c.push_backend != "file":
        yield (
            f"vllm.sync_delta continues files, and vllm.sync_backend = '{c.push_backend}' writes none."
            " Leave one of them out."
        )
    if v.sync_backend == "ipc" and not c.train.share_gpus:
        yield (
            "vllm.sync_backend = 'ipc' maps the learner's memory into an engine that is on the same GPU at the same"
            " time, which only train.share_gpus allows. Set that, or use 'nccl' or 'file'."
        )
    if c.push_backend in ("gloo", "nccl") and c.timeouts.broadcast_s >= c.timeouts.push_s:
        yield (
            f"timeouts.broadcast_s = {c.timeouts.broadcast_s:g} leaves no time to repeat a torn push within"
            f" timeouts.push_s = {c.timeouts.push_s:g}. Make it a fraction of that, e.g. 60."
        )


def _staleness(c: Config) -> Iterator[str]:
    """What S allows where a batch makes several updates. (With one, the section says it all.)"""
    p, k = c.pipeline, c.updates_per_batch
    ahead = 0 if p.mode == "sync" else 1
    if k > 1 and c.batches_ahead < ahead:
        yield (
            f"pipeline.max_staleness = {p.S} updates are too few: a batch makes {k} ({_cut(c)}), so in mode '{p.mode}'"
            f" its last update trains tokens that are {(ahead + 1) * k - 1} updates old. Use {(ahead + 1) * k - 1} or"
            " more, leave it unset, or make fewer updates per batch."
        )
    elif k > 1 and p.push_every > c.batches_ahead + 1:
        yield (
            f"pipeline.push_every = {p.push_every} batches of {k} updates ({_cut(c)}): the last one before a push would"
            f" train tokens {p.push_every * k - 1} updates old, and pipeline.max_staleness allows {c.max_staleness}."
            f" Use push_every <= {c.batches_ahead + 1}, or raise max_staleness."
        )


def _roles(c: Config) -> Iterator[str]:
    kl, estimator = c.algo.kl, c.algo.advantage.estimator
    if not kl.init_coef:
        for setting, value in (
            ("algo.kl.use_loss", kl.use_loss),
            ("algo.kl.target", kl.target),
            ("ref.offload", c.ref.offload and not c.needs_reference),
        ):
            if value:
                yield (
                    f"{setting} = {value} has no reference model to compare with, as algo.kl.init_coef = 0 loads none. "
                    f"Set that, e.g. 0.001, or leave {setting} out."
                )
    if kl.horizon is not None and kl.target is None:
        yield (
            f"algo.kl.horizon = {kl.horizon} is of an adaptive coefficient, and algo.kl.target is unset."
            " Set the KL per token to follow, e.g. 0.01."
        )
    if kl.use_loss and kl.estimator == "k1" and not kl.unbiased_gradient:
        yield (
            "algo.kl.estimator = 'k1' in the loss with algo.kl.unbiased_gradient = False has a gradient of zero on"
            " average, so it would hold nothing. Use k2 or k3, or unbiased_gradient."
        )
    if c.critic.model_name_or_path and estimator in CRITIC_FREE:
        yield (
            f"critic.model_name_or_path = {c.critic.model_name_or_path!r}, and algo.advantage.estimator = {estimator!r}"
            " uses no critic. Set the estimator to 'gae', or leave the critic out."
        )
    if c.critic.freezing_steps >= c.train.max_steps:
        yield (
            f"critic.freezing_steps = {c.critic.freezing_steps} leaves none of train.max_steps = {c.train.max_steps} to"
            " the policy. Lower the first."
        )
    elif c.critic.freezing_steps > 0 and (over := c.critic.freezing_steps % c.updates_per_batch):
        k, down = c.updates_per_batch, c.critic.freezing_steps - over
        yield (
            f"critic.freezing_steps = {c.critic.freezing_steps} updates end in the middle of a batch, of which each"
            f" makes {k} ({_cut(c)}), and a batch trains the policy or leaves it. Use"
            f" {f'{down} or ' if down else ''}{down + k}."
        )


def _pipeline(c: Config) -> Iterator[str]:
    b, depth = c.rollout.batch_size, c.pipeline.depth
    yield from _staleness(c)
    at_once = c.rollout.vllm_generate_batch_size
    if at_once is not None and at_once > b and c.pipeline.mode == "sync":
        yield (
            f"rollout.vllm_generate_batch_size = {at_once} is more than rollout.batch_size = {b}, and pipeline.mode ="
            " 'sync' samples one batch at a time. Lower it, or use --pipeline.mode pipeline."
        )
    if depth is not None and c.pipeline.mode in ("sync", "one_step"):
        yield (
            f"pipeline.depth does not go with pipeline.mode = '{c.pipeline.mode}',"
            " which rolls exactly one batch. Leave it unset."
        )
    elif isinstance(depth, int) and depth < b:
        yield f"pipeline.depth = {depth} groups can never fill a batch of rollout.batch_size = {b}. Use at least {b}."
    elif isinstance(depth, int) and depth > (bound := (c.batches_ahead + 1) * b):
        k = c.updates_per_batch
        yield (
            f"pipeline.depth = {depth} groups is more than staleness allows: (S + 1)"
            f" {f'/ {k} updates per batch ' if k > 1 else ''}* rollout.batch_size = ({c.batches_ahead} + 1) * {b} ="
            f" {bound}. Lower it, raise pipeline.max_staleness, or use 'auto'."
        )
    yield from _fill(c)
    if c.stall_timeout_s <= c.rollout.group_deadline_s:
        yield (
            f"pipeline.stall_timeout_s = {c.stall_timeout_s} would abort while a group may still run"
            f" (rollout.group_deadline_s = {c.rollout.group_deadline_s}). Make it longer than that, or leave it unset."
        )


def _fill(c: Config) -> Iterator[str]:
    """The batches that are rolled before the first step fit into what may be under way then."""
    batches, mode, depth = c.pipeline.fill_batches, c.pipeline.mode, c.pipeline.depth
    if batches == 1:
        return
    if mode in ("sync", "one_step"):
        yield (
            f"pipeline.fill_batches = {batches} does not go with pipeline.mode = '{mode}', which rolls one batch at a"
            " time. Leave it out, or use mode pipeline or pipeline_drain."
        )
    elif batches > c.batches_ahead + 1:
        yield (
            f"pipeline.fill_batches = {batches} is more than staleness has room for, {c.batches_ahead + 1} batches."
            " Lower it, or raise pipeline.max_staleness."
        )
    elif isinstance(depth, int) and depth < batches * c.rollout.batch_size:
        yield (
            f"pipeline.fill_batches = {batches} batches of {c.rollout.batch_size} groups never fill, as pipeline.depth"
            f" = {depth} groups may be under way. Use pipeline.depth >= {batches * c.rollout.batch_size}, or leave it"
            " out."
        )


def _fast_lane(c: Config) -> Iterator[str]:
    lane, engines = c.pipeline.fast_lane, c.vllm.num_engines
    if lane == "off":
        return
    if c.pipeline.drain:
        yield (
            f"pipeline.fast_lane = {lane!r} does not go with pipeline.mode = '{c.pipeline.mode}', whose pushes wait for"
            " every running group: no response keeps a gate waiting. Leave it off, or use mode = 'pipeline'."
        )
    if isinstance(lane, int) and lane >= engines:
        yield (
            f"pipeline.fast_lane = {lane} engines, and vllm.num_engines = {engines}: one at least must take new"
            " groups. " + (f"Use at most {engines - 1}, or 'auto'." if engines > 1 else "A lane needs a second engine.")
        )
    if lane == "auto" and engines < 2:
        yield f"pipeline.fast_lane = 'auto' needs a second engine, and vllm.num_engines = {engines}. Leave it off."
    if c.by_agent:
        yield (
            f"pipeline.fast_lane = {lane!r} moves the responses of our own turn loop,"
            " and here agents write them. Leave it off."
        )


def _ends(c: Config) -> Iterator[str]:
    if c.ckpt.disable_ds and (asked := [name for name in ("resume", "max_restarts") if getattr(c.train, name)]):
        yield f"train.{asked[0]} goes on from a checkpoint, and ckpt.disable_ds writes none. Leave one of them out."
    limit, grace = c.train.save_before_s, c.train.stop_grace_s
    if limit is not None and limit <= grace:
        yield (
            f"train.save_before_s = {limit:g} is no longer than train.stop_grace_s = {grace:g}: the run would stop"
            " before it begins. Raise the first."
        )


def _reward(c: Config) -> Iterator[str]:
    if "remote" in c.reward.used and not c.reward.remote_url:
        yield (
            "reward 'remote' asks reward.remote_url, which is not set."
            " Give a Python file with a reward_func, or the URL of a reward server."
        )
    if c.reward.remote_url and not c.reward.remote_url.endswith(":reward_func"):
        for url in (u.strip() for u in c.reward.remote_url.split(",") if u.strip()):
            if not url.startswith(("http://", "https://")):
                yield (
                    f"reward.remote_url has {url!r}, which is neither a Python file (path/file.py) nor the URL of a"
                    " reward server. Write http://host:port/path."
                )
    if c.reward.remote_url and "remote" not in c.reward.used:
        yield (
            f"reward.remote_url = {c.reward.remote_url!r} is asked by reward 'remote', and the reward is"
            f" {', '.join(c.reward.used)}. Leave reward.name out, set it to 'remote', or add remote to reward.weights."
        )
    used = "model" in c.reward.used
    if used and not c.reward.model_name_or_path:
        yield (
            "The reward 'model' needs a reward model."
            " Set reward.model_name_or_path to a HF sequence classifier of one label."
        )
    if c.reward.model_name_or_path and not used:
        yield (
            f"reward.model_name_or_path = {c.reward.model_name_or_path!r} would be loaded for nothing: the reward is "
            f"{', '.join(c.reward.used)}. Set reward.name to 'model', or give 'model' a weight in reward.weights."
        )
    if c.reward.normalize_enable and not c.reward.model_name_or_path:
        yield (
            "reward.normalize_enable is about the scores of a reward model, and reward.model_name_or_path is unset."
            " Set that, or leave it out."
        )
    buffer, clip = c.reward.overlong_buffer_len, c.reward.clip_range
    if buffer is not None and buffer > c.rollout.max_new_tokens:
        yield (
            f"reward.overlong_buffer_len = {buffer:g} is more than rollout.max_new_tokens = {c.rollout.max_new_tokens}:"
            " every response would be overlong. Make it a part of it, e.g. a quarter."
        )
    if clip is not None and not clip[0] < clip[1]:
        yield f"reward.clip_range = {clip} is no range. Use low < high, e.g. -10 10."
    if c.reward.verify_deadline_s < c.reward.verify_timeout_s:
        yield (
            f"reward.verify_deadline_s = {c.reward.verify_deadline_s} ends a check before it can use up"
            f" reward.verify_timeout_s = {c.reward.verify_timeout_s} of CPU: hostile answers would be faults. Raise the"
            " deadline; ten times the CPU is a good measure."
        )
