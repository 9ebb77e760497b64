#!/usr/bin/env bash
# PPO whose rewards are answered by servers, or by a Python file. 2 GPUs train, 4 sample.
# A script for OpenRLHF as it stands. Here:
#   openrlhf-tir import-openrlhf examples/openrlhf/remote_reward.sh --out remote_reward.toml
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

FLAGS=(
    --actor.num_nodes 1
    --actor.num_gpus_per_node 2
    --ref.num_nodes 1
    --ref.num_gpus_per_node 2
    --critic.num_nodes 1
    --critic.num_gpus_per_node 2
    --vllm.num_engines 2
    --vllm.tensor_parallel_size 2
    --train.colocate_actor_ref

    --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture
    --reward.remote_url "${REWARD_URL:-$here/reward_func.py}"      # or http://host:5000/get_reward,http://host:5001/get_reward
    --reward.normalize_enable
    --data.prompt_dataset OpenRLHF/prompt-collection-v0.1
    --data.input_key context_messages
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
python3 -m openrlhf.cli.train_ppo_ray "${FLAGS[@]}"
