"""Arguments of TRL's configs that set nothing here: those that need nothing, and those that a sentence speaks of.

NEEDS_NOTHING    changes nothing that is trained, whatever its value, or asks for what is so here in any case
DIFFERENCES      has no counterpart: why, or what to do instead; there are values with which nothing differs
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .recipe_draft import NO_SETTING, Difference, Draft, sentence_about
from .trl_script import TrlScript

if TYPE_CHECKING:
    from .trl_import import TrlArguments

NEEDS_NOTHING = re.compile(
    "use_vllm|vllm_(mode|server_.*|group_port|gpu_memory_utilization|max_model_len(gth)?|tensor_parallel_size"
    "|enable_sleep_mode|enable_prefix_caching|model_impl|device|ascend_.*)|tf32|logging_.*|log_.*"
    "|remove_unused_columns|ds3_gather.*|disable_dropout|dataloader_.*|push_to_hub|hub_.*|save_strategy"
    "|save_total_limit|save_only_model|overwrite_output_dir|per_device_eval_batch_size|eval_(steps|strategy)|do_.*"
    "|run_name|shuffle_dataset|use_liger.*|gradient_checkpointing_.*|attn_implementation|num_completions_to_print"
    "|cache_implementation|generation_batch_size|steps_per_generation|ddp_.*|fsdp.*|pad_.*|dataset_num_proc"
    "|activation_offloading|accelerate_config|num_processes|num_machines|machine_rank|main_process_(ip|port)|gpu_ids"
)
ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla", "paged_adamw_32bit")
DTYPES = ("auto", "bfloat16", "bf16", "float32", "fp32")
"""Data types that weights are loaded in: the learner has bf16 weights with fp32 masters."""
LOADING = ("attn_implementation", "device_map", "use_cache", "low_cpu_mem_usage", "cache_dir", "token")
"""Arguments of from_pretrained that change nothing that is trained."""
SAID_ELSEWHERE = ("quantization_config", "load_in_4bit", "load_in_8bit")
NOT_SAMPLED = "tokens are sampled as the policy says: {} would not be the policy that is trained"
DIFFERENCES = (
    Difference("optim", "AdamW with 32-bit states here; see actor.optim and ds.adam_offload", ADAMW),
    Difference("fp16", "bf16 weights with fp32 masters here; see ds.param_dtype"),
    Difference("bf16", "bf16 weights with fp32 masters here; see ds.param_dtype", (True,)),
    Difference("torch_dtype|dtype", "bf16 weights with fp32 masters here; see ds.param_dtype", DTYPES),
    Difference("trust_remote_code", "code that comes with a model is not run: models must be in transformers"),
    Difference("router_aux_loss_coef", "see actor.aux_loss_coef", (0,)),
    Difference("repetition_penalty", NOT_SAMPLED.format("a penalty"), (1,)),
    Difference("vllm_(structured_outputs|guided_decoding)_regex", NOT_SAMPLED.format("what a pattern leaves"), ("",)),
    Difference("generation_kwargs", "see rollout.temperature, top_p, top_k and min_p", ({},)),
    Difference("sync_ref_model", "the reference stays the model that the run started from"),
    Difference("top_entropy_quantile", "all tokens of a response are trained", (1,)),
    Difference("use_adaptive_entropy", "see actor.entropy_coef"),
    Difference("off_policy_mask_threshold", "see algo.advantage.is_correction_level", ()),
    Difference(
        "multi_objective_aggregation",
        "rewards are added up, then compared within a group",
        ("sum_then_normalize",),
    ),
    Difference("num_generations_eval", "see eval.n_samples_per_prompt", ()),
    Difference("packing_strategy", "rows are neither cut nor joined", ("bfd",)),
    Difference("eos_token", "a response ends with the token that the model's tokenizer or chat template says", ()),
    Difference("dataset_kwargs", "rows are read as docs/sft.md says", ({},)),
)


def needs_nothing(name: str) -> bool:
    """Return True for an argument that changes nothing that is trained, whatever its value."""
    return NEEDS_NOTHING.fullmatch(name) is not None


def account_for_unread(trl: TrlArguments, script: TrlScript, draft: Draft) -> list[str]:
    """Say what becomes of every argument that set nothing, and return those that need nothing.

    Args:
        trl: The arguments, all that set something having been read.
        script: The script, beside which files are found.
        draft: The finished recipe; it gets the sentences.
    """
    nothing = []
    for name, value in trl.unread():
        sentence = sentence_about(DIFFERENCES, name, value)
        if name == "model_init_kwargs":
            sentence = _of_loading(value)
        elif name == "deepspeed":
            sentence = _of_deepspeed(value, script)
        elif sentence is None:
            sentence = "" if needs_nothing(name) else NO_SETTING
        if sentence:
            draft.differs(f"{name}{'' if isinstance(value, Mapping) else f'={value}'}: {sentence}.")
        else:
            nothing.append(name)
    return nothing


def _of_loading(arguments: Any) -> str:
    """Return what is to be said of arguments of from_pretrained; "" for those that change nothing that is trained."""
    others = [
        str(key)
        for key, value in (arguments.items() if isinstance(arguments, Mapping) else [(arguments, None)])
        if key not in (*LOADING, *SAID_ELSEWHERE) and not (key in ("dtype", "torch_dtype") and value in DTYPES)
    ]
    return f"{', '.join(others)} not taken over; set it in the model's config.json" if others else ""


def _of_deepspeed(config: Any, script: TrlScript) -> str:
    """Return what is to be said of DeepSpeed's configuration, or of the file of it: what it sets besides the script."""
    if isinstance(config, str):
        try:
            config = json.loads(Path(script.path_of(config)).read_text(encoding="utf-8-sig"))
        except (OSError, ValueError):
            return "its file is not here; optimizer, scheduler, gradient_clipping and fp16 of it are not taken over"
    if not isinstance(config, Mapping):
        return ""
    sections = {name: config.get(name) for name in ("optimizer", "scheduler", "gradient_clipping")}
    own = [name for name, section in sections.items() if not _is_auto(section)]
    fp16 = config.get("fp16")
    own += ["fp16"] if isinstance(fp16, Mapping) and fp16.get("enabled") is True else []
    return f"{', '.join(own)} of it not taken over; see actor.* and ds.*" if own else ""


def _is_auto(section: Any) -> bool:
    """Return True for a section of DeepSpeed's configuration that transformers fills with the script's arguments."""
    if not isinstance(section, Mapping):
        return section in (None, "auto")
    params = section.get("params")
    return isinstance(params, Mapping) and bool(params) and all(map(_is_auto, params.values()))
