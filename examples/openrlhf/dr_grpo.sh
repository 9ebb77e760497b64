#!/usr/bin/env bash
# Dr. GRPO: reward minus the group's mean, not divided by its standard deviation. 4 GPUs train and sample in turns.
# A script for OpenRLHF as it stands. Here:
#   openrlhf-tir import-openrlhf examples/openrlhf/dr_grpo.sh --out dr_grpo.toml
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

FLAGS=(
    --actor.num_nodes 1
    --actor.num_gpus_per_node 4
    --ref.num_nodes 1
    --ref.num_gpus_per_node 4
    --vllm.num_engines 2
    --vllm.tensor_parallel_size 2
    --vllm.gpu_memory_utilization 0.9
    --vllm.enforce_eager
    --train.colocate_all
    --vllm.enable_sleep
    --ds.enable_sleep
    --vllm.sync_backend nccl

    --actor.model_name_or_path Qwen/Qwen3-4B-Thinking-2507
    --reward.remote_url "$here/reward_func.py"
    --data.prompt_dataset zhuzilin/dapo-math-17k
    --data.input_key prompt
    --data.label_key label
    --data.apply_chat_template
    --data.max_samples 128000
    --data.max_len 16384
    --rollout.max_new_tokens 14336

    --algo.advantage.estimator dr_grpo
    --algo.kl.init_coef 0
    --actor.eps_clip_low_high 0.2 0.28
    --algo.dynamic_filtering_enable
    --actor.adam.lr 5e-7
    --actor.entropy_coef 0.0
    --rollout.batch_size 128
    --rollout.n_samples_per_prompt 8
    --train.batch_size 1024
    --train.max_epochs 1
    --train.num_episodes 1
    --train.micro_batch_size 1
    --rollout.micro_batch_size 8
    --train.dynamic_batch_enable
    --train.max_tokens_per_gpu 16384
    --rollout.max_tokens_per_gpu 32768
    --ds.zero_stage 3
    --ds.param_dtype bf16
    --ds.packing_samples
    --actor.gradient_checkpointing_enable

    --ckpt.output_dir model
    --ckpt.path ckpt
    --ckpt.save_hf
    --ckpt.save_steps 10
    --ckpt.max_num 3
    --logger.tensorboard_dir runs
    --logger.logging_steps 1
    --eval.steps -1
)
python3 -m openrlhf.cli.train_ppo_ray "${FLAGS[@]}"
