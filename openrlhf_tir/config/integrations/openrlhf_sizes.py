"""Sizes of an OpenRLHF run: lengths, ranks and engines, batches and the number of updates, as they can be here.

The draft has every flag of OpenRLHF with a default by now. What cannot be so here has another value, with a sentence.
"""

from __future__ import annotations

import math

from .openrlhf_command_flags import CommandFlags
from .openrlhf_parsers import TRAIN_PPO_RAY
from .openrlhf_rules import has_critic, shared_by_heads
from .recipe_draft import Draft

BATCHES_OF_UNKNOWN_ROWS = 1000
"""Batches by which train.max_steps is set where the rows are not here to be counted."""
ONE_EACH = "one beside each learner rank, in turns"


def set_lengths(flags: CommandFlags, draft: Draft) -> None:
    """Set prompt and response, and the forward passes that hold them."""
    _set_response(draft)
    _set_forward_passes(flags, draft)
    buffer = draft.settings.get("reward.overlong_buffer_len")
    response = draft.settings["rollout.max_new_tokens"]
    if buffer is not None and buffer > response:
        draft.unset("reward.overlong_buffer_len")
        draft.differs(
            f"--reward.overlong_buffer_len {buffer:g} is more than rollout.max_new_tokens = {response}, and OpenRLHF"
            " fails with it: left out."
        )


def _set_response(draft: Draft) -> None:
    """Set the longest response so that data.max_len has room for a prompt as well."""
    longest = draft.settings["data.max_len"]
    response = draft.settings.get("rollout.max_new_tokens")
    if response is None:
        response = longest // 2 if longest < 4096 else longest - 1024
        draft.set("rollout.max_new_tokens", response, f"OpenRLHF: what the prompt leaves of {longest}")
        draft.differs(
            f"rollout.max_new_tokens is not given: OpenRLHF lets a response have what its prompt leaves of data.max_len"
            f" = {longest}. Here it is one number, {response}, and prompts longer than {longest - response} are left"
            " out: set it to data.max_len minus your longest prompt."
        )
    elif response >= longest:
        enough = response + max(1, longest // 2)
        draft.set("data.max_len", enough)
        draft.differs(
            f"--rollout.max_new_tokens {response} leaves no room for a prompt in data.max_len = {longest}:"
            f" data.max_len = {enough}."
        )


def _set_forward_passes(flags: CommandFlags, draft: Draft) -> None:
    """Set how many tokens a forward pass holds, and how ranks share a sequence."""
    longest = draft.settings["data.max_len"]
    ring = draft.settings.get("ds.ring_attn_size", 1)
    for name in ("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu"):
        tokens = draft.settings.get(name)
        if tokens is None or longest <= tokens * ring:
            continue
        needed = -(-longest // ring)
        draft.set(name, needed, f"a sequence of data.max_len = {longest} must fit into a forward pass")
        if name in flags:
            over = f" over {ring} ranks" if ring > 1 else ""
            draft.differs(
                f"--{name} {tokens}: {needed}, a sequence of data.max_len = {longest}{over} must fit into a forward"
                " pass. OpenRLHF gives a longer one a pass of its own."
            )
    if ring <= 1:
        return
    draft.set("ds.attn_implementation", "sdpa", "shared sequences (ds.ring_attn_size) need it")
    draft.set("ds.packing_samples", True)
    draft.differs(shared_by_heads(ring))
    if draft.settings.get("ds.use_liger_kernel"):
        draft.unset("ds.use_liger_kernel")
        draft.differs("--ds.use_liger_kernel: left out, it has not been tested on shared sequences. Memory only.")


def set_placement(draft: Draft, *, asynchronous: bool, reward_gpus: int | None) -> None:
    """Set ranks, engines and reward models, together or apart, and the batches that they share.

    Args:
        draft: The recipe.
        asynchronous: True if the command asks for asynchronous training.
        reward_gpus: The GPUs that the command gives its reward model; None where it says nothing.
    """
    if not draft.settings.get("vllm.num_engines"):
        draft.set("vllm.num_engines", 1, "not given")
    if draft.settings.get("train.colocate_all"):
        _check_colocation(draft, asynchronous=asynchronous)
    has_reward_model = bool(draft.settings.get("reward.model_name_or_path"))
    if draft.settings.get("train.colocate_all"):
        if has_reward_model:
            _separate_reward_model(draft)
        _place_engines_beside_ranks(draft)
    elif has_reward_model and reward_gpus is not None:
        draft.set("reward.model_replicas", reward_gpus, "a reward model on each of the script's GPUs for it")
    _share_samples(draft)
    _share_sequences(draft)
    _set_updates_of_a_batch(draft)


def _samples_of_a_batch(draft: Draft) -> int:
    return draft.settings["rollout.batch_size"] * draft.settings["rollout.n_samples_per_prompt"]


def _ranks(draft: Draft) -> int:
    return draft.settings["actor.num_nodes"] * draft.settings["actor.num_gpus_per_node"]


def _check_colocation(draft: Draft, *, asynchronous: bool) -> None:
    """Leave train.colocate_all out where ranks and engines cannot take turns, else set the ZeRO stage that can."""
    if asynchronous:
        draft.unset("train.colocate_all")
        draft.differs(
            "--train.colocate_all with --train.async_enable: OpenRLHF then colocates the trained models only, which"
            " here always live on the same ranks; engines have GPUs of their own, in OpenRLHF as well: left out."
        )
        return
    if draft.settings["ds.zero_stage"] != 3:
        draft.set("ds.zero_stage", 3, "train.colocate_all moves ZeRO-3's states out of the GPU")
        draft.differs("--train.colocate_all: ds.zero_stage = 3, whose states can leave the GPU while engines sample.")
    if "muon" in (draft.settings.get("actor.optim"), draft.settings.get("critic.optim")):
        gpus = draft.settings["vllm.num_engines"] * draft.settings["vllm.tensor_parallel_size"]
        draft.unset("train.colocate_all")
        draft.differs(
            "--train.colocate_all with Muon: left out, DeepSpeed cannot move Muon's states. Engines need"
            f" {gpus} GPUs of their own."
        )


def _separate_reward_model(draft: Draft) -> None:
    """Give a reward model GPUs of its own, which the other models of a colocated run leave to it."""
    nodes = draft.settings["actor.num_nodes"]
    gpus = draft.settings["actor.num_gpus_per_node"]
    if nodes * gpus == 1:
        draft.set("reward.model_replicas", 1)
        draft.differs(
            "--train.colocate_all on one GPU: the reward model needs a second GPU here, or a server"
            " (`python -m openrlhf.cli.serve_rm`, which reward.remote_url asks)."
        )
        return
    trained = _most_that_share_equally(draft, gpus - 1 or 1)
    replicas = max(1, gpus - trained)
    draft.set("actor.num_gpus_per_node", trained, "the node's other GPUs hold the reward model")
    draft.set("reward.model_replicas", replicas, "a GPU each")
    draft.set("reward.num_nodes", nodes)
    draft.differs(
        f"--train.colocate_all: a reward model has a GPU of its own here. Of the {gpus} GPUs of a node {trained} train"
        f" and sample in turns, {replicas} hold the reward model."
    )


def _place_engines_beside_ranks(draft: Draft) -> None:
    ranks = _ranks(draft)
    engines = draft.settings["vllm.num_engines"]
    gpus_of_an_engine = draft.settings["vllm.tensor_parallel_size"]
    possible = min(engines * gpus_of_an_engine, ranks)
    if gpus_of_an_engine > 1:
        draft.differs(
            f"--vllm.num_engines {engines} --vllm.tensor_parallel_size {gpus_of_an_engine} with --train.colocate_all:"
            f" {possible} engines of one GPU, one beside each rank: an engine that shares its GPUs has one here. The"
            " responses are of the same policy; each GPU must hold all weights of the model while it samples. For a"
            " model that is too large for that, leave train.colocate_all out and give the engines GPUs of their own."
        )
    elif possible != engines:
        draft.differs(f"--vllm.num_engines {engines}: {possible}, one at most beside each learner rank.")
    draft.set("vllm.num_engines", possible, ONE_EACH if possible == ranks else "")
    draft.unset("vllm.tensor_parallel_size")


def _most_that_share_equally(draft: Draft, gpus: int) -> int:
    """Return the number of GPUs of a node, at most `gpus`, over which the samples of a batch divide; 1 if none does."""
    samples = _samples_of_a_batch(draft)
    nodes = draft.settings["actor.num_nodes"]
    return next((fewer for fewer in range(gpus, 1, -1) if samples % (nodes * fewer) == 0), 1)


def _share_samples(draft: Draft) -> None:
    """Take as many ranks as the samples of a batch divide over."""
    samples = _samples_of_a_batch(draft)
    gpus = draft.settings["actor.num_gpus_per_node"]
    if samples % _ranks(draft) == 0:
        return
    fewer = _most_that_share_equally(draft, gpus)
    draft.set("actor.num_gpus_per_node", fewer, "the samples of a batch divide over as many")
    draft.differs(
        f"actor.num_gpus_per_node = {gpus}: {fewer}, the {samples} samples of a batch are shared equally by the ranks"
        " here."
    )
    if draft.settings.get("train.colocate_all") and draft.settings["vllm.num_engines"] > _ranks(draft):
        draft.set("vllm.num_engines", _ranks(draft), ONE_EACH)


def _share_sequences(draft: Draft) -> None:
    """Leave ds.ring_attn_size out where ranks cannot share sequences."""
    ring = draft.settings["ds.ring_attn_size"]
    ranks = _ranks(draft)
    if ring > 1 and has_critic(draft.settings["algo.advantage.estimator"]):
        draft.differs(
            f"--ds.ring_attn_size {ring}: left out, a critic has not been tested on shared sequences here. Each rank"
            " then needs the memory for whole sequences."
        )
    elif ranks % ring:
        draft.differs(f"--ds.ring_attn_size {ring} does not divide the {ranks} ranks: left out.")
    else:
        return
    draft.unset("ds.ring_attn_size")


def _set_updates_of_a_batch(draft: Draft) -> None:
    """Set the samples of an update: OpenRLHF takes parts of any size, here they are equal."""
    samples = _samples_of_a_batch(draft)
    size = draft.settings["train.batch_size"]
    shards = max(1, _ranks(draft) // draft.settings.get("ds.ring_attn_size", 1))
    if size >= samples:
        if size > samples:
            draft.differs(
                f"train.batch_size = {size} is more than the {samples} samples of a batch: one update a batch, as"
                " OpenRLHF's last, incomplete one."
            )
        draft.set("train.batch_size", samples, "one update a batch")
        return
    fitting = [number for number in range(shards, samples + 1) if samples % number == 0]
    if size in fitting or not fitting:
        return
    nearest = min(fitting, key=lambda number: abs(math.log(number / size)))
    draft.set("train.batch_size", nearest, "a divisor of the samples of a batch")
    draft.differs(
        f"train.batch_size = {size} does not divide the {samples} samples of a batch: {nearest}. OpenRLHF leaves the"
        " last update smaller."
    )


def set_steps(draft: Draft, rows: int | None) -> None:
    """Set the number of updates, over which the learning rate's schedule runs: OpenRLHF counts the prompts.

    Args:
        draft: The recipe with its batches.
        rows: The number of rows of its data; None where it is not known.
    """
    samples = draft.settings["rollout.n_samples_per_prompt"]
    size = draft.settings["train.batch_size"]
    epochs = draft.settings["train.max_epochs"]
    episodes = draft.settings["train.num_episodes"]
    updates_of_a_batch = _samples_of_a_batch(draft) // size * epochs
    most_rows = draft.settings["data.max_samples"]
    if rows is None and most_rows >= TRAIN_PPO_RAY["data.max_samples"].default:
        steps = BATCHES_OF_UNKNOWN_ROWS * updates_of_a_batch
        draft.set("train.max_steps", steps, "the rows are not here to be counted: correct it")
        draft.differs(
            "OpenRLHF derives the number of updates from the rows, and they are not on this machine: train.max_steps ="
            f" {steps}. The run ends with the data in any case (train.num_episodes), but the learning rate's schedule"
            f" is over train.max_steps: set it to rows * train.num_episodes * {samples} / {size} * {epochs}."
        )
        return
    prompts = most_rows if rows is None else min(most_rows, rows)
    steps = prompts * samples // size * episodes * epochs
    steps = max(1, steps // updates_of_a_batch) * updates_of_a_batch
    counted = f"as OpenRLHF counts: {prompts} prompts, {episodes} episode{'s' * (episodes > 1)}"
    draft.set("train.max_steps", steps, counted)
    if rows is None:
        draft.differs(
            f"train.max_steps = {steps} is for data.max_samples = {prompts} rows; if the data have fewer, lower it in"
            " proportion, as the learning rate's schedule runs over it."
        )
