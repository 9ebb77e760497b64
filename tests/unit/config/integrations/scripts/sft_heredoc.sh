set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --data.dataset my-org/instructions \
   --data.input_key question \
   --data.output_key response \
   --data.max_len 2048 \
   --train.batch_size 256 \
   --train.micro_batch_size 2 \
   --model.model_name_or_path my-org/base-8b \
   --ckpt.output_dir ./checkpoint/sft \
   --ckpt.load_enable \
   --ds.zero_stage 2 \
   --train.max_epochs 1 \
   --adam.lr 1e-5 \
   --ds.packing_samples \
   --model.gradient_checkpointing_enable
EOF
    # --wandb [WANDB_TOKENS]

if [[ ${1} != "slurm" ]]; then
    deepspeed --num_gpus 4 --module $training_commands
fi
