"""A command line of verl -> a recipe that does what the command did.

    verl_settings.py    what the command says, over verl's defaults
    verl_method.py      estimator, critic, loss, filters, KL
    this file           all else: data, model, batches, engines, tools, rewards, placement, length, outputs
    verl_left_out.py    what sets nothing here: it needs nothing, or has a sentence

Every override ends in one of three ways: it sets something, it needs nothing here, or a sentence of `Draft.differs`
names it. None is dropped without a word. What the command does not give has verl's default, where this project's is
another. The program says whether rollout and training overlap.

To take over one more override, add verl's default to DEFAULTS, and a row to COPIED; where the value here is more than
a copy, read it in the function of its area. An override that is in DEFAULTS alone is taken for one that needs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...algorithms.advantages import ESTIMATORS
from ..engine_args import OWN, refusal
from .bash_script import readable
from .recipe_draft import Copied, Draft, Imported, checked, copy, if_positive, if_set
from .separate_gpus import say_turns
from .shared_settings import (
    CALLS_OF_A_RESPONSE,
    say_not_named,
    say_wandb_key,
    say_warm_up,
    set_no_tool,
    set_run_dir,
    set_tools,
)
from .verl_left_out import account_for_unread
from .verl_method import set_method
from .verl_overrides import Overrides
from .verl_settings import (
    ACTOR,
    MODEL,
    OPTIMISER,
    ROLLOUT,
    VerlSettings,
    shown,
    verl_settings,
)

COPIED = (
    Copied("data.seed", "train.seed", lambda seed: None if seed is None else int(seed)),
    Copied("data.shuffle", "data.shuffle", lambda shuffles: None if shuffles else False),
    Copied("data.train_max_samples", "data.max_samples", if_positive),
    Copied("data.val_max_samples", "eval.max_samples", if_positive),
    Copied(f"{MODEL}.enable_gradient_checkpointing", "actor.gradient_checkpointing_enable", bool),
    Copied(f"{MODEL}.use_remove_padding", "ds.packing_samples", bool, "use_remove_padding"),
    Copied(f"{MODEL}.use_liger", "ds.use_liger_kernel", if_set(bool)),
    Copied(f"{OPTIMISER}.lr", "actor.learning_rate", float),
    Copied(f"{OPTIMISER}.weight_decay", "actor.l2", float),
    Copied(f"{OPTIMISER}.betas", "actor.adam_betas", if_set(lambda betas: [float(beta) for beta in betas])),
    Copied(f"{ACTOR}.entropy_coeff", "actor.entropy_coef", if_set(float)),
    Copied(f"{ACTOR}.fsdp_config.optimizer_offload", "ds.adam_offload", if_set(bool)),
    Copied(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "train.micro_batch_size", if_set(int)),
    Copied(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "rollout.micro_batch_size", if_set(int)),
    Copied(f"{ROLLOUT}.temperature", "rollout.temperature", float),
    Copied(f"{ROLLOUT}.top_p", "rollout.top_p", float),
    Copied(f"{ROLLOUT}.top_k", "rollout.top_k", lambda top_k: max(0, int(top_k))),
    Copied(f"{ROLLOUT}.enforce_eager", "vllm.enforce_eager", if_set(bool)),
    Copied(f"{ROLLOUT}.enable_prefix_caching", "vllm.enable_prefix_caching", lambda on: False if on is False else None),
    Copied(f"{ROLLOUT}.max_num_seqs", "vllm.max_num_seqs", if_set(int)),
    Copied(f"{ROLLOUT}.gpu_memory_utilization", "vllm.gpu_memory_utilization", float),
    Copied(f"{ROLLOUT}.val_kwargs.n", "eval.n_samples_per_prompt", int),
    Copied(f"{ROLLOUT}.val_kwargs.top_p", "eval.top_p", float),
    Copied("trainer.nnodes", "actor.num_nodes", int),
    Copied("trainer.n_gpus_per_node", "actor.num_gpus_per_node", int),
    Copied("trainer.total_epochs", "train.num_episodes", int),
)
"""verl's settings that are one here each."""
SCHEDULES = ("constant", "cosine", "linear")
"""Schedules of the learning rate that have the same name here."""
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""ds.param_dtype -> the same in vllm.dtype and in verl, which takes both."""
CONFIG_OF = {"ref": "actor_rollout_ref.ref.fsdp_config", "critic": "critic.model.fsdp_config"}
"""A model beside the policy -> verl's settings of how it is held."""
CALL_FORMAT_OF = {"hermes": "hermes", "llama3": "llama3", "llama3_json": "llama3", "mistral": "mistral"}
"""verl's multi_turn.format -> ours."""
CHARACTERS_OF_A_TOKEN = 3
"""verl bounds replies of tools in characters, this project in tokens."""
UPDATES_WITHOUT_END = 100_000
"""train.max_steps of a run that ends with its data."""
REWARDED_BY_NAME = ("gsm8k", "math", "aime", "search")
"""Parts of names of data whose rewards verl has."""
_OWN_TRAINERS = re.compile(
    r"(.*\.)?(verl\.trainer|verl\.experimental\.(one_step_off_policy|fully_async_policy|transfer_queue)"
    r"|recipe\.(dapo|one_step_off_policy|fully_async_policy|transfer_queue))\.(main_ppo|main_dapo|fully_async_main)"
    r"|main_ppo"
)
"""Programs whose method is what verl's settings say. A module of another name may compute anything."""


def import_verl(
    overrides: Overrides,
    *,
    program: str = "verl.trainer.main_ppo",
    name: str = "verl",
    directories: Sequence[Path] = (),
    sources_of: Callable[[Sequence[str]], set[str]] = lambda files: set(),
    rows_of: Callable[[Sequence[str]], int | None] = lambda files: None,
    change: Callable[[Draft], None] | None = None,
) -> Imported:
    """Return the recipe of one command line.

    Args:
        overrides: Its overrides.
        program: The module that it starts, which says whether rollout and training overlap.
        name: The script's name, for the run directory.
        directories: Where relative paths may begin, the likeliest first; the current directory is the last.
        sources_of: The `data_source`s of some files' rows, as far as the files are here.
        rows_of: The number of rows of some files; None where they are not here.
        change: What is done to the draft before it is checked.
    """
    draft = Draft()
    verl = verl_settings(overrides, (*directories, Path.cwd()), draft)
    copy(COPIED, verl, draft)
    files = _set_data(verl, draft)
    _set_model(verl, draft)
    updates = _set_batches(verl, draft)
    set_method(verl, draft, updates, program)
    has_critic = ESTIMATORS[draft.settings["algo.advantage.estimator"]].critic
    optimisers = {"actor": ACTOR, "critic": "critic"} if has_critic else {"actor": ACTOR}
    for ours, theirs in optimisers.items():
        _set_optimiser(verl, draft, theirs, ours)
    _set_precision(verl, draft)
    _set_shared_sequences(verl, draft)
    _set_engines(verl, draft)
    _set_tools(verl, draft)
    _set_reward(verl, draft, sources_of(files), files)
    _set_mode(verl, draft, program)
    _set_placement(verl, draft)
    batches = _set_length(verl, draft, updates, rows_of(files))
    for ours, theirs in optimisers.items():
        _set_warm_up(verl, draft, theirs, ours, batches)
    _set_outputs(verl, draft, name, updates)
    nothing = account_for_unread(verl, draft)
    if change is not None:
        change(draft)
    say_turns(draft, int(verl(f"{ROLLOUT}.tensor_model_parallel_size")))
    return checked(draft, nothing)


def _set_data(verl: VerlSettings, draft: Draft) -> list[str]:
    """Set rows and prompts, and return the files of the training rows as the recipe names them."""
    files = verl.files("data.train_files", draft)
    if files:
        draft.set("data.prompt_dataset", files if len(files) > 1 else files[0])
    else:
        say_not_named(draft, "data.train_files", "data.prompt_dataset")
    held_out = verl.files("data.val_files", draft)
    if held_out:
        draft.set("eval.dataset", ",".join(held_out))
    draft.set("data.apply_chat_template", True, "verl renders every prompt so")
    key = str(verl("data.prompt_key"))
    if key == "prompt":
        draft.set("data.row_schema", "verl")
    else:
        draft.set("data.input_key", key)
        draft.set("data.label_key", "reward_model.ground_truth")
    prompt = int(verl(f"{ROLLOUT}.prompt_length") or verl("data.max_prompt_length"))
    response = int(verl(f"{ROLLOUT}.response_length") or verl("data.max_response_length"))
    draft.set("rollout.max_new_tokens", response)
    draft.set("data.max_len", prompt + response, f"prompts of {prompt} tokens and responses of {response}")
    if draft.settings.get("data.max_samples") and len(files) > 1:
        draft.differs("data.train_max_samples: so many rows of each file here, where verl takes so many of all.")
    if options := verl.below("data.apply_chat_template_kwargs"):
        draft.set("data.chat_template_options", options)
    return files


def _set_model(verl: VerlSettings, draft: Draft) -> None:
    if models := verl.paths(f"{MODEL}.path"):
        draft.set("actor.model_name_or_path", models[0])
    else:
        say_not_named(draft, f"{MODEL}.path", "actor.model_name_or_path")
    rank = verl(f"{MODEL}.lora_rank") or verl(f"{MODEL}.lora.rank")
    alpha = verl(f"{MODEL}.lora.alpha") or verl(f"{MODEL}.lora_alpha")
    modules = verl(f"{MODEL}.target_modules")
    if rank:
        draft.set("ds.lora.rank", int(rank))
        draft.set("ds.lora.alpha", int(alpha))
        draft.set("ds.lora.target_modules", modules if isinstance(modules, list) else [str(modules)])


def _set_batches(verl: VerlSettings, draft: Draft) -> int:
    """Set prompts, samples and mini-batches, and return the number of updates that a batch makes."""
    prompts = int(verl("data.train_batch_size"))
    samples = int(verl(f"{ROLLOUT}.n"))
    wanted = int(verl(f"{ACTOR}.ppo_mini_batch_size"))
    epochs = int(verl(f"{ACTOR}.ppo_epochs"))
    mini_batch = max(1, wanted)
    if prompts <= 0:  # the fully asynchronous trainer counts mini-batches
        prompts = mini_batch * int(verl("async_training.require_batches") or 1)
    draft.set("rollout.batch_size", prompts)
    draft.set("rollout.n_samples_per_prompt", samples)
    if samples == 1:
        draft.set("rollout.min_valid", 1)
    if mini_batch < prompts:
        mini_batch = next(size for size in range(mini_batch, 0, -1) if prompts % size == 0)
        if mini_batch != wanted:
            draft.differs(
                f"ppo_mini_batch_size does not divide train_batch_size = {prompts}: {mini_batch} prompts are used."
            )
        reason = f"ppo_mini_batch_size = {mini_batch} prompts of {samples} samples"
        draft.set("train.batch_size", mini_batch * samples, reason)
    if epochs > 1:
        draft.set("train.max_epochs", epochs)
    longest = int(draft.settings["data.max_len"])
    draft.set("train.max_tokens_per_gpu", max(longest, int(verl(f"{ACTOR}.ppo_max_token_len_per_gpu"))))
    without_gradient = int(verl(f"{ROLLOUT}.log_prob_max_token_len_per_gpu") or 0)
    if without_gradient and without_gradient >= longest:
        draft.set("rollout.max_tokens_per_gpu", without_gradient)
    return prompts // min(mini_batch, prompts) * epochs


def _set_optimiser(verl: VerlSettings, draft: Draft, theirs: str, ours: str) -> None:
    """Set the clip of the gradient and the schedule of the learning rate.

    Args:
        verl: The settings of the command.
        draft: The recipe, with the learning rate.
        theirs: verl's name of the model, whose optimiser is below it.
        ours: The section of the model here.
    """
    clip = verl(f"{theirs}.optim.clip_grad")
    draft.set(f"{ours}.max_norm", float(verl(f"{theirs}.grad_clip") if clip is None else clip))
    schedule = verl(f"{theirs}.optim.warmup_style") or verl(f"{theirs}.optim.lr_scheduler_type")
    schedule = str(verl(f"{theirs}.optim.lr_decay_style") or schedule)
    if schedule not in SCHEDULES:
        draft.differs(f"The schedule {schedule} of the learning rate: constant here.")
        schedule = "constant"
    draft.set(f"{ours}.lr_scheduler", schedule)
    if schedule != "constant":
        rate = draft.settings[f"{ours}.learning_rate"]
        ratio = verl(f"{theirs}.optim.min_lr_ratio")
        lowest = verl(f"{theirs}.optim.min_lr")  # Megatron's
        if lowest and rate:
            ratio = lowest / rate
        draft.set(f"{ours}.min_lr_ratio", float(ratio))


def _set_precision(verl: VerlSettings, draft: Draft) -> None:
    """Set the data types in which learner and engines compute."""
    of_actor = f"{ACTOR}.fsdp_config.dtype"
    value = verl(f"{ACTOR}.fsdp_config.mixed_precision.param_dtype") or verl(of_actor)
    learner = _precision(value)
    if learner == "fp16":
        draft.set("ds.param_dtype", learner, "fsdp_config.dtype")
    elif learner != "bf16":
        draft.differs(f"{of_actor}={shown(value)}: bf16 here. See ds.param_dtype.")
        learner = "bf16"
    others = ("ref", "critic") if "critic.learning_rate" in draft.settings else ("ref",)
    for model in others:
        for kind in ("dtype", "mixed_precision.param_dtype"):
            name = f"{CONFIG_OF[model]}.{kind}"
            if verl.gives(name) and _precision(verl(name)) != learner:
                draft.differs(f"{name}={shown(verl(name))}: {learner} here. All models compute in ds.param_dtype.")
    value = verl(f"{ROLLOUT}.dtype")
    engine = _precision(value)
    if engine is None and value not in (None, "auto"):
        draft.differs(f"{ROLLOUT}.dtype={shown(value)}: {PRECISIONS[learner]} here. See vllm.dtype.")
    elif engine not in (None, learner):
        draft.set("vllm.dtype", PRECISIONS[engine])


def _precision(value: Any) -> str | None:
    """Return ds.param_dtype of a data type's name."""
    return next((short for short, long in PRECISIONS.items() if value in (short, long)), None)


def _set_shared_sequences(verl: VerlSettings, draft: Draft) -> None:
    size = int(verl(f"{ACTOR}.ulysses_sequence_parallel_size") or 1)
    if size <= 1:
        return
    if draft.settings.get("ds.lora.rank") or ESTIMATORS[draft.settings["algo.advantage.estimator"]].critic:
        draft.differs(
            f"ulysses_sequence_parallel_size={size}: left out, neither a critic nor LoRA has been tested on shared"
            " sequences here. Each rank needs the memory for whole ones."
        )
        return
    draft.set("ds.ring_attn_size", size)
    draft.set("ds.attn_implementation", "sdpa", "what shared sequences are tested with")


def _set_engines(verl: VerlSettings, draft: Draft) -> None:
    """Set vLLM's options, and how an evaluation samples."""
    options = {}
    for name, value in verl.below(f"{ROLLOUT}.engine_kwargs.vllm").items():
        reason = refusal(name, value)
        if value is None or name == "disable_mm_preprocessor_cache":
            continue
        if reason is None:
            options[name] = value
        elif OWN.get(name) == f"vllm.{name}":
            draft.set(OWN[name], value, f"engine_kwargs.vllm.{name}")
        else:
            draft.differs(f"{ROLLOUT}.engine_kwargs.vllm.{name}={shown(value)}: left out, {name!r} {reason}.")
    if tokens := verl(f"{ROLLOUT}.max_num_batched_tokens"):
        options["max_num_batched_tokens"] = int(tokens)
    if options:
        draft.set("vllm.engine_args", options)
    samples = verl(f"{ROLLOUT}.val_kwargs.do_sample") is not False
    draft.set("eval.temperature", float(verl(f"{ROLLOUT}.val_kwargs.temperature")) if samples else 0.0)
    top_k = if_positive(verl(f"{ROLLOUT}.val_kwargs.top_k"))
    if top_k:
        draft.differs(f"{ROLLOUT}.val_kwargs.top_k={top_k}: evaluations sample from all tokens of eval.top_p.")


def _set_tools(verl: VerlSettings, draft: Draft) -> None:
    """Set what verl's multi-turn settings say, or that there is no tool."""
    multi_turn = f"{ROLLOUT}.multi_turn"
    configs = verl.files(f"{multi_turn}.tool_config_path", draft) or verl.files("data.tool_config_path", draft)
    if not configs:
        set_no_tool(draft)
        if verl(f"{multi_turn}.enable"):
            draft.differs(f"{multi_turn}.enable without a tool_config_path: nothing is called.")
        return
    set_tools(draft, configs[0], "verl's tool configuration, as it is")
    style = str(verl(f"{multi_turn}.format"))
    if style not in CALL_FORMAT_OF:
        draft.differs(
            f"{multi_turn}.format={style}: hermes here; env.options.calls has the others (docs/protocols.md)."
        )
    draft.set("env.options", {"calls": CALL_FORMAT_OF.get(style, "hermes")})
    turns = verl(f"{multi_turn}.max_assistant_turns")
    replies = verl(f"{multi_turn}.max_user_turns")
    bounds = ([int(turns) - 1] if turns else []) + ([int(replies)] if replies else [])
    if bounds:
        draft.set("env.max_calls", max(1, min(bounds)))
    else:
        draft.set("env.max_calls", CALLS_OF_A_RESPONSE, "verl bounds them by the length alone")
    length = int(verl(f"{multi_turn}.max_tool_response_length"))
    tokens = max(1, length // CHARACTERS_OF_A_TOKEN)
    draft.set("env.output_max_tokens", tokens)
    draft.differs(f"{multi_turn}.max_tool_response_length={length} characters: about {tokens} tokens here.")
    side = verl(f"{multi_turn}.tool_response_truncate_side")
    if side != "left":
        draft.differs(f"{multi_turn}.tool_response_truncate_side={side}: the end of a reply that is too long is cut.")
    calls = int(verl(f"{multi_turn}.max_parallel_calls"))
    if calls < draft.settings["env.max_calls"]:
        draft.differs(f"{multi_turn}.max_parallel_calls={calls}: all calls of a message are made, up to env.max_calls.")


def _set_reward(verl: VerlSettings, draft: Draft, sources: set[str], files: Sequence[str]) -> None:
    """Set the user's function, a reward model, or verl's own rewards, and the penalty for long responses.

    Args:
        verl: The settings of the command.
        draft: The recipe.
        sources: The `data_source`s of the rows, as far as they are here.
        files: The files of the training rows.
    """
    function = verl.files("custom_reward_function.path", draft)
    options = verl.below("custom_reward_function.reward_kwargs")
    model = verl.paths("reward_model.model.path")
    if function:
        draft.set("reward.name", f"{function[0]}:{verl('custom_reward_function.name')}", "verl's function, as it is")
        if options:
            draft.set("reward.options", options)
        if verl("reward_model.enable"):
            draft.differs(
                "reward_model.enable with custom_reward_function.path: the function alone rewards, and no"
                " reward_router_address reaches it. To add up both, name it and 'model' in reward.weights."
            )
    elif model and verl("reward_model.enable"):
        draft.set("reward.name", "model")
        draft.set("reward.model_name_or_path", model[0])
    else:
        draft.set("reward.name", "verl", "verl's own rewards, by the row's data_source")
        named = " ".join(files).lower()
        if not sources and not any(word in named for word in REWARDED_BY_NAME):
            draft.differs(
                "The command names no reward function, so verl rewards by data_source, and the rows are not here to be"
                " looked at: the check before the run says whether 'verl' knows their data_source."
            )
    buffer = "reward_model.reward_kwargs.overlong_buffer_cfg"
    length = verl(f"{buffer}.len")
    if verl(f"{buffer}.enable") and not length:
        draft.differs(f"{buffer}.enable without {buffer}.len: no penalty. Set reward.overlong_buffer_len.")
    elif verl(f"{buffer}.enable"):
        draft.set("reward.overlong_buffer_len", float(length))
        draft.set("reward.overlong_penalty_factor", float(verl(f"{buffer}.penalty_factor") or 1.0))
        longest = int(verl("reward_model.reward_kwargs.max_resp_len") or 0)
        if longest not in (0, draft.settings["rollout.max_new_tokens"]):
            draft.differs(f"max_resp_len={longest}: the penalty is reckoned from rollout.max_new_tokens here.")


def _set_mode(verl: VerlSettings, draft: Draft, program: str) -> None:
    """Set whether rollout and training overlap, which the program says."""
    if "fully_async" in program:
        mode = "pipeline" if verl("async_training.partial_rollout") in (None, True) else "pipeline_drain"
        draft.set("pipeline.mode", mode)
        draft.differs(
            "verl's fully asynchronous trainer"
            f" (staleness_threshold={verl('async_training.staleness_threshold')},"
            f" trigger_parameter_sync_step={verl('async_training.trigger_parameter_sync_step')}): pipeline.mode ="
            f" {mode!r} here, whose pipeline.max_staleness is a hard bound in updates."
        )
    elif "one_step_off" in program:
        draft.set("pipeline.mode", "one_step")
    else:
        draft.set("pipeline.mode", "sync", "verl samples, then trains")
    if _OWN_TRAINERS.fullmatch(program) is None:
        draft.differs(
            f"{readable(program)} is another trainer than verl's own: what its code changes in the method, the rewards"
            " or the rollout is not in the recipe, which has what the overrides say. Compare its code."
        )


def _set_placement(verl: VerlSettings, draft: Draft) -> None:
    """Set the engines: in turns with the ranks on the same GPUs, or apart where rollout and training overlap."""
    nodes = draft.settings["actor.num_nodes"]
    per_node = draft.settings["actor.num_gpus_per_node"]
    ranks = nodes * per_node
    gpus_of_an_engine = int(verl(f"{ROLLOUT}.tensor_model_parallel_size"))
    gpus = int(verl("rollout.nnodes") or nodes) * int(verl("rollout.n_gpus_per_node") or per_node)
    if draft.settings["pipeline.mode"] != "sync":
        draft.set("vllm.num_engines", max(1, gpus // gpus_of_an_engine))
        draft.set("vllm.tensor_parallel_size", gpus_of_an_engine)
        return
    draft.set("train.colocate_all", True, "learner and engines in turns on the same GPUs, as verl")
    draft.set("vllm.num_engines", ranks, "one beside each learner rank")
    if gpus_of_an_engine > 1 and ranks > 1:
        draft.differs(
            f"{ROLLOUT}.tensor_model_parallel_size={gpus_of_an_engine}: {ranks} engines of one GPU, one beside each"
            " rank. A GPU must hold all weights of the model while it samples."
        )


def _set_length(verl: VerlSettings, draft: Draft, updates: int, rows: int | None) -> int:
    """Set the number of updates, which verl counts in batches, and return the number of batches, 0 if not known.

    Args:
        verl: The settings of the command.
        draft: The recipe.
        updates: The number of updates that a batch makes.
        rows: The number of training rows; None where it is not known.
    """
    epochs = draft.settings["train.num_episodes"]
    batches = int(verl("trainer.total_training_steps") or 0)
    if rows:
        rows = min(rows, draft.settings.get("data.max_samples", rows))
    if batches:
        draft.set("train.max_steps", batches * updates, f"{batches} batches" if updates > 1 else "")
    elif rows and (batches := rows // draft.settings["rollout.batch_size"] * epochs):
        draft.set("train.max_steps", batches * updates, f"{rows} rows, {epochs} times")
    else:
        reason = "the run ends with the data, after train.num_episodes passes"
        draft.set("train.max_steps", UPDATES_WITHOUT_END * updates, reason)
        if {draft.settings.get(f"{model}.lr_scheduler") for model in ("actor", "critic")} - {"constant", None}:
            draft.differs("The learning rate's schedule runs over train.max_steps: set it to the number of updates.")
    if updates > 1:
        draft.differs(
            f"A batch makes {updates} updates, and steps are updates here: train.max_steps, eval.steps and"
            f" ckpt.save_steps are {updates} times verl's numbers."
        )
    return batches


def _set_warm_up(verl: VerlSettings, draft: Draft, theirs: str, ours: str, batches: int) -> None:
    """Set the warm-up of the learning rate, a share of the run."""
    share = verl(f"{theirs}.optim.lr_warmup_steps_ratio")
    steps = if_positive(verl(f"{theirs}.optim.lr_warmup_steps"))
    if steps and batches:
        # verl's schedule moves on once a batch, however many updates that makes.
        draft.set(f"{ours}.lr_warmup_ratio", min(0.99, steps / batches), f"{steps} of {batches} batches")
    elif steps:
        say_warm_up(draft, f"{theirs}.optim.lr_warmup_steps", steps, f"{ours}.lr_warmup_ratio")
    elif share:
        draft.set(f"{ours}.lr_warmup_ratio", float(share))


def _set_outputs(verl: VerlSettings, draft: Draft, name: str, updates: int) -> None:
    """Set the run directory, loggers, and after how many updates a run saves and evaluates.

    Args:
        verl: The settings of the command.
        draft: The recipe.
        name: The script's name, for a command that does not name its experiment.
        updates: The number of updates that a batch makes.
    """
    experiment = str(verl("trainer.experiment_name"))
    set_run_dir(draft, experiment if verl.gives("trainer.experiment_name") else name)
    loggers = verl("trainer.logger")
    loggers = loggers if isinstance(loggers, list) else [loggers]
    if "tensorboard" not in loggers:
        draft.set("logger.tensorboard_dir", None)
    project = str(verl("trainer.project_name"))
    if "wandb" in loggers and verl.gives("trainer.logger"):
        draft.set("logger.wandb.project", project)
        draft.set("logger.wandb.run_name", experiment)
        say_wandb_key(draft, "trainer.logger wandb")
    for other in loggers:
        if other not in ("console", "wandb", "tensorboard", None):
            draft.differs(f"trainer.logger={other}: not available; see metrics.jsonl and report.html in run_dir.")
    save_every = if_positive(verl("trainer.save_freq"))
    draft.set("ckpt.save_steps", save_every * updates if save_every else -1)
    if kept := if_positive(verl("trainer.max_actor_ckpt_to_keep")):
        draft.set("ckpt.max_num", kept)
    elif save_every:
        draft.differs("trainer.max_actor_ckpt_to_keep is not given, and verl keeps every checkpoint: see ckpt.max_num.")
    evaluate_every = if_positive(verl("trainer.test_freq"))
    if draft.settings.get("eval.dataset"):
        draft.set("eval.steps", evaluate_every * updates if evaluate_every else -1)
