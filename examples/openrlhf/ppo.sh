#!/usr/bin/env bash
# PPO: a critic with GAE, a reward model and a reference. 8 GPUs train, 8 sample, 2 hold the reward model.
#   examples/openrlhf/ppo.sh --check-only [any flag of `openrlhf-tir train`]
# The left column is OpenRLHF's line; `left out` says what it is here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

FLAGS=(
    --actor.num_nodes 1
    --actor.num_gpus_per_node 8
    --ref.num_nodes 1
    --ref.num_gpus_per_node 8            # on the policy's ranks
    --critic.num_nodes 1
    --critic.num_gpus_per_node 8         # on the policy's ranks
    --reward.num_nodes 1
    --reward.num_gpus_per_node 2         # a model per GPU
    --vllm.num_engines 4
    --vllm.tensor_parallel_size 2
    --vllm.gpu_memory_utilization 0.9
    --vllm.enforce_eager
    # left out: --train.colocate_all, --vllm.enable_sleep, --ds.enable_sleep: rollout and training have GPUs of their own, and overlap
    # left out: --vllm.sync_backend nccl: no GPU has run it here yet; file, the default, pushes through shared memory or a shared directory

    --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture
    --reward.model_name_or_path OpenRLHF/Llama-3-8b-rm-700k
    --reward.normalize_enable
    --data.prompt_dataset OpenRLHF/prompt-collection-v0.1
    --data.input_key context_messages
    --data.label_key context_messages    # every row has a label here; a reward model does not read it
    --data.apply_chat_template
    --data.max_samples 100000
    --data.max_len 2048

    --algo.advantage.estimator gae
    --algo.kl.init_coef 0.01
    --actor.adam.lr 5e-7
    --critic.adam.lr 9e-6
    --rollout.batch_size 1024
    --rollout.n_samples_per_prompt 1
    --rollout.max_new_tokens 1024
    --train.batch_size 128               # 8 updates of each rollout batch
    --train.max_epochs 1
    --train.dynamic_batch_enable
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
    --ds.zero_stage 3
    --ds.param_dtype bf16
    --ds.packing_samples
    --actor.gradient_checkpointing_enable
    --algo.advantage.is_correction_level token
    --algo.advantage.is_correction_mode clip

    --ckpt.output_dir llama3-8b-rlhf
    --ckpt.path ckpt
    --ckpt.save_steps 100
    --ckpt.save_hf
)
exec "${TIR:-openrlhf-tir}" train --recipe "$here/openrlhf.toml" "${FLAGS[@]}" "$@"
