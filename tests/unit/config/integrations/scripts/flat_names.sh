# The names that OpenRLHF had up to 0.9.
ray job submit --no-wait -- python3 -m openrlhf.cli.train_ppo_ray \
    --actor_num_nodes 1 --actor_num_gpus_per_node 2 --vllm_num_engines 2 \
    --pretrain my-org/policy --remote_rm_url http://localhost:5000/get_reward \
    --prompt_data my-org/prompts --input_key question --apply_chat_template \
    --prompt_max_len 512 --generate_max_len 1536 \
    --rollout_batch_size 64 --micro_rollout_batch_size 4 --train_batch_size 64 \
    --advantage_estimator reinforce --init_kl_coef 0.02 --actor_learning_rate 3e-7 \
    --zero_stage 3 --bf16 --flash_attn --gradient_checkpointing --adam_offload --packing_samples \
    --actor_init_on_gpu --ptx_coef 0.05 --use_wandb 0123456789abcdef
