#!/usr/bin/env bash
# PPO whose rewards are answered by servers, or by a Python file. 2 GPUs train, 4 sample.
#   examples/openrlhf/remote_reward.sh --check-only [any flag of `openrlhf-tir train`]
# The left column is OpenRLHF's line; `left out` says what it is here.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

FLAGS=(
    --actor.num_nodes 1
    --actor.num_gpus_per_node 2
    --ref.num_nodes 1
    --ref.num_gpus_per_node 2            # on the policy's ranks
    --critic.num_nodes 1
    --critic.num_gpus_per_node 2         # on the policy's ranks
    --vllm.num_engines 2
    --vllm.tensor_parallel_size 2
    --train.colocate_actor_ref

    --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture
    --reward.remote_url "${REWARD_URL:-$here/reward_func.py}"      # or http://host:5000/get_reward,http://host:5001/get_reward
    # left out: --reward.normalize_enable: it is about the scores of a reward model of the run's own
    --data.prompt_dataset OpenRLHF/prompt-collection-v0.1
    --data.input_key context_messages
    --data.label_key context_messages
    --data.apply_chat_template
    --data.max_samples 100000
    --data.max_len 2048

    --algo.advantage.estimator gae
    --algo.kl.init_coef 0.01
    --actor.adam.lr 5e-7
    --critic.adam.lr 9e-6
    --rollout.batch_size 1024
    --rollout.micro_batch_size 16
    --train.batch_size 128
    --train.micro_batch_size 8
    --train.max_epochs 1
    --ds.param_dtype bf16
    --ds.attn_implementation flash_attention_2
    --actor.gradient_checkpointing_enable
    --ckpt.output_dir llama3-8b-rlhf
)
exec "${TIR:-openrlhf-tir}" train --recipe "$here/openrlhf.toml" "${FLAGS[@]}" "$@"
