read -r -d '' training_commands <<EOF
openrlhf.cli.train_dpo \
   --data.dataset my-org/preferences \
   --model.beta 0.1
EOF
deepspeed --module $training_commands
python -m openrlhf.cli.serve_rm --reward.model_name_or_path my-org/reward --port 5000
