#!/bin/bash
# PPO with a reward model, submitted to a Ray cluster; everything shares its GPUs.
set -x
MODEL=${MODEL:-my-org/policy-8b}
RM="my-org/reward-8b"
GPUS=8

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor.num_nodes 1 \
   --actor.num_gpus_per_node $GPUS \
   --ref.num_nodes 1 \
   --ref.num_gpus_per_node ${GPUS} \
   --critic.num_nodes 1 --critic.num_gpus_per_node $GPUS \
   --reward.num_nodes 1 --reward.num_gpus_per_node $GPUS \
   --vllm.num_engines $((GPUS / 2)) \
   --vllm.tensor_parallel_size 2 \
   --train.colocate_all \
   --vllm.enable_sleep --ds.enable_sleep \
   --vllm.sync_backend nccl \
   --actor.model_name_or_path "$MODEL" \
   --reward.model_name_or_path $RM \
   --data.prompt_dataset my-org/prompts \
   --data.input_key context_messages \
   --data.apply_chat_template \
   --data.max_samples 20480 \
   --rollout.batch_size 1024 \
   --train.batch_size 128 \
   --actor.adam.lr 5e-7 \
   --ds.zero_stage 3 \
   --ds.tensor_parallel_size 2 \
   --logger.wandb.key {wandb_token}
