#!/usr/bin/env bash
# PPO: a critic with GAE, a reward model and a reference. 8 GPUs train, 8 sample, 2 hold the reward model.
# A script for OpenRLHF as it stands. Here:
#   openrlhf-tir import-openrlhf examples/openrlhf/ppo.sh --out ppo.toml
set -euo pipefail

FLAGS=(
    --actor.num_nodes 1
    --actor.num_gpus_per_node 8
    --ref.num_nodes 1
    --ref.num_gpus_per_node 8
    --critic.num_nodes 1
    --critic.num_gpus_per_node 8
    --reward.num_nodes 1
    --reward.num_gpus_per_node 2
    --vllm.num_engines 4
    --vllm.tensor_parallel_size 2
    --vllm.gpu_memory_utilization 0.9
    --vllm.enforce_eager
    --vllm.sync_backend nccl

    --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture
    --reward.model_name_or_path OpenRLHF/Llama-3-8b-rm-700k
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
python3 -m openrlhf.cli.train_ppo_ray "${FLAGS[@]}"
