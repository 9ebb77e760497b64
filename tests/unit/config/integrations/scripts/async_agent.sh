python3 -m openrlhf.cli.train_ppo_ray --train.async_enable --train.async_queue_size 2 --train.colocate_all \
  --train.agent_func_path agent_func.py --algo.advantage.estimator reinforce_baseline \
  --rollout.n_samples_per_prompt 4 --rollout.batch_size 32 --train.batch_size 128 --vllm.num_engines 2 \
  --actor.num_gpus_per_node 2 --actor.model_name_or_path my-org/p --data.prompt_dataset my-org/d --data.max_len 4096 \
  --rollout.max_new_tokens 3000 --ds.load_in_4bit
