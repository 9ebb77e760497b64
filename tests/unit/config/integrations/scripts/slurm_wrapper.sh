#!/bin/bash
#SBATCH -N 2
readonly training_script="sft_heredoc.sh"
readonly GPUS_PER_NODE=8
ROOT=<WHERE_OPENRLHF_IS>
source ./${training_script} slurm
echo $training_commands &>> log
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
for ((i = 1; i < nodes; i++)); do
    srun -w "${list[$i]}" bash -c "ray start --address $MASTER_ADDR --block" &
done
srun --container-mounts="$ROOT:/openrlhf" \
    bash -c " cd /openrlhf; pip install . ; torchrun \
--nproc_per_node $GPUS_PER_NODE --master_addr $MASTER_ADDR -m ${training_commands}" &>> log
