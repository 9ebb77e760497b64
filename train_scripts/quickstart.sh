#!/usr/bin/env bash
# From a clean clone to a model that has learned to use Python, on a machine without a GPU.
#   quickstart.sh [--seed N] [--run-dir DIR] [--env.url URL] [any flag of `openrlhf-tir quickstart`]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
if [[ ! -e /dev/nvidia0 ]]; then export DS_ACCELERATOR=cpu; fi # else DeepSpeed looks for one, and says so
export OMP_NUM_THREADS=1 # more threads than cores is catastrophic for the small model

bash "$here/setup_env.sh"
exec "${TIR_VENV:-.venv}/bin/python" -m openrlhf_tir.cli quickstart --setup-seconds "$SECONDS" "$@"
