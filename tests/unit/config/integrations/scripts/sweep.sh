#!/bin/bash
# Several commands: a sweep over learning rates, started by a function.
train() {
    local lr=$1 name="$2"
    python -m openrlhf.cli.train_ppo_ray --actor.adam.lr $lr --ckpt.output_dir out/$name \
        --actor.model_name_or_path my-org/p --data.prompt_dataset my-org/d --reward.remote_url http://a:1/r
}
for lr in 1e-6 5e-7; do
    train $lr "lr-$lr"
done
exit 0
train 1 never
