#!/usr/bin/env bash
# Train on this machine: train.sh --recipe zerotir_7b --data.prompt_dataset problems.jsonl [any flag of `openrlhf-tir train`]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

setup=()
if [[ -e /dev/nvidia0 ]]; then setup=(--gpu); else export DS_ACCELERATOR=cpu; fi
bash "$here/setup_env.sh" ${setup[@]+"${setup[@]}"} # bash before 4.4 calls an empty array unbound
exec "${TIR_VENV:-.venv}/bin/python" -m openrlhf_tir.cli train "$@"
