#!/usr/bin/env bash
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
MODEL_ARGS=(
   --actor.model_name_or_path my-org/policy-4b
   # --actor.model_name_or_path my-org/another
   --ckpt.output_dir "checkpoints/grpo run"   # a directory with a blank
)
ROLLOUT_ARGS=(--rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --rollout.max_new_tokens 1024)
ROLLOUT_ARGS+=(--data.prompt_dataset my-org/maths --data.input_key prompt --data.label_key label --data.max_len 2048)
ALGO_ARGS=(
   --algo.advantage.estimator group_norm
   --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3
   --algo.dynamic_filtering_enable
   --algo.dynamic_filtering_range 0.1 0.9
   --algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop
)
if [[ "$DEBUG" == "1" ]]; then
   ALGO_ARGS+=(--train.seed 1)
fi
python3 -m openrlhf.cli.train_ppo_ray \
   "${MODEL_ARGS[@]}" ${ROLLOUT_ARGS[@]} "${ALGO_ARGS[@]}" \
   --reward.remote_url "$HERE/reward_func.py" \
   --train.batch_size 512 --actor.num_gpus_per_node 4 --vllm.num_engines 2 --vllm.tensor_parallel_size 2 \
   --actor.lr_scheduler constant --actor.adam.lr=2e-6
