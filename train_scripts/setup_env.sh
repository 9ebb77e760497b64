#!/usr/bin/env bash
# Make .venv with the pinned requirements, or find it complete and do nothing. Idempotent; needs no network once complete.
#   setup_env.sh [--gpu] [--with-cpu-adam]
#     --gpu            requirements.txt (CUDA) instead of requirements-cpu.txt
#     --with-cpu-adam  also build DeepSpeed's cpu_adam, the only C++ op that a run can need (ds.adam_offload)
# Environment: PYTHON (interpreter to use), TIR_VENV (where, default .venv).
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${TIR_VENV:-.venv}
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
MIN_DISK_GB=8
MIN_MEMORY_GB=8

kind=cpu
with_cpu_adam=0
for arg in "$@"; do
    case $arg in
        --gpu) kind=gpu ;;
        --with-cpu-adam) with_cpu_adam=1 ;;
        *) echo "setup_env.sh: unknown option '$arg'. Known: --gpu, --with-cpu-adam." >&2; exit 2 ;;
    esac
done
if [[ $kind == gpu ]]; then
    requirements=(requirements.txt requirements-nodeps.txt requirements-puzzles.txt)
else
    requirements=(requirements-cpu.txt requirements-cpu-nodeps.txt requirements-puzzles.txt)
fi

say() { echo "[setup +${SECONDS}s] $*"; }
refuse() { echo "Set-up cannot go on: $*" >&2; exit 2; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    refuse "it needs Python 3.11 or later, and ${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>&1 || true). Install python3.11, or set PYTHON to one."
}

as_root() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

apt_install() { # what for, packages...
    local why=$1
    shift
    as_root || refuse "$why is missing. Install it: sudo apt-get install $*"
    say "installing $* (apt)"
    { apt-get install -y -qq --no-install-recommends "$@" || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; }; } >/dev/null 2>&1 \
        || refuse "apt-get could not install $*. Install it by hand."
}

check_machine() {
    local disk_gb memory_kb cgroup
    disk_gb=$(($(df -Pk . | awk 'NR == 2 {print $4}') / 1024 / 1024))
    ((disk_gb >= MIN_DISK_GB)) || refuse "it needs $MIN_DISK_GB GB of free disk in $PWD, and there are $disk_gb GB. Free some, or set TIR_VENV to a bigger disk."
    memory_kb=$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)
    cgroup=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
    [[ $cgroup == max ]] || ((cgroup / 1024 >= memory_kb)) || memory_kb=$((cgroup / 1024))
    ((memory_kb >= MIN_MEMORY_GB * 1000 * 1000)) || refuse "training needs $MIN_MEMORY_GB GB of memory, and this machine has $((memory_kb / 1024 / 1024)) GB."
    if ! command -v c++ >/dev/null; then
        ((with_cpu_adam == 0)) || refuse "building cpu_adam needs a C++ compiler (c++), and there is none. Install one: apt-get install g++"
        say "note: there is no C++ compiler (c++); only ds.adam_offload would need one (apt-get install g++)"
    fi
}

install_cpu() {
    local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --no-compile --no-deps --progress-bar off -qq) torch
    # The name alone is a CPU build on some indexes and a CUDA build, with its 3 GB of libraries, on PyPI: ask what it would install.
    torch=$(grep '^torch==' requirements-cpu.txt)
    if "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet --dry-run --no-deps --ignore-installed --report - "$torch" 2>/dev/null \
        | "$VENV/bin/python" -c 'import json, sys; sys.exit(any("nvidia" in r or "cuda" in r for r in json.load(sys.stdin)["install"][0]["metadata"].get("requires_dist", [])))'; then
        say "torch: $torch is a CPU build here"
        "${pip[@]}" "$torch"
    else
        say "torch: taking ${torch}+cpu from $TORCH_CPU_INDEX"
        "${pip[@]}" --index-url "$TORCH_CPU_INDEX" "${torch}+cpu"
    fi
    # Every package is pinned, so nothing needs to be resolved; two installers share the unpacking, which is what takes the time.
    say "packages: $(grep -c '==' requirements-cpu.txt) pinned ones, and vLLM, OpenRLHF and DeepSpeed"
    "${pip[@]}" -r <(grep -v '^torch==' requirements-cpu.txt) &
    local others=$!
    "${pip[@]}" -r <(grep -v '^deepspeed==' requirements-cpu-nodeps.txt)
    wait "$others"
    DS_ACCELERATOR=cpu DS_BUILD_OPS=0 "${pip[@]}" --no-build-isolation "$(grep -o '^deepspeed==[^ ]*' requirements-cpu-nodeps.txt)"
}

install_puzzles() {
    say "packages: $(grep -c '==' requirements-puzzles.txt) pinned ones of the puzzles environment"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --no-compile --no-deps --no-build-isolation --progress-bar off -qq -r requirements-puzzles.txt \
        >"$VENV/puzzles.log" 2>&1 || say "note: reasoning-gym could not be installed (pycosat needs a C compiler and Python's headers), so puzzles serves its games only; $VENV/puzzles.log says why"
}

install_gpu() {
    local pip=("$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off --quiet)
    say "packages: requirements.txt"
    "${pip[@]}" -r requirements.txt
    say "packages: requirements-nodeps.txt (flash-attn may compile for a long time)"
    "${pip[@]}" --no-deps --no-build-isolation -r requirements-nodeps.txt
}

stamp=$VENV/.tir-setup
packaging=$(sed '/^\[tool\.pytest/,$d' pyproject.toml) # without the settings of tools, which ask for no other packages
wanted=$(cat "${requirements[@]}" - <<<"$packaging" | sha256sum | cut -c1-16)
python=$(find_python)
command -v bwrap >/dev/null || apt_install "bubblewrap (isolation of model-written code)" bubblewrap

if [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]]; then
    check_machine
    "$python" -c 'import ensurepip' 2>/dev/null || apt_install "Python's venv module" "$(basename "$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')")-venv"
    say "environment: $VENV ($("$python" --version))"
    [[ -x $VENV/bin/python ]] || "$python" -m venv "$VENV"
    "install_$kind"
    install_puzzles
    "$VENV/bin/python" -m pip install --disable-pip-version-check -qq --no-deps --no-build-isolation -e .
    say "importing everything once (compiles what is used, and shows that the installation works)"
    unset PYTHONDONTWRITEBYTECODE # set in many container images; every process of a run would compile torch, vLLM and the rest anew: 12 s of CPU each
    "$VENV/bin/python" -c 'import openrlhf_tir.engines.start, vllm.v1.engine.async_llm, vllm.v1.worker.cpu_worker, ray.dashboard.dashboard, fastapi, math_verify' >/dev/null 2>"$VENV/import.log" &
    others=$!
    "$VENV/bin/python" -c 'import openrlhf_tir.cluster.jobs.train, openrlhf_tir.learner.zero3, datasets, matplotlib.pyplot, tensorboard' >/dev/null || refuse "the training packages do not import; the reason is above."
    wait "$others" || { cat "$VENV/import.log" >&2; refuse "vLLM or Ray does not import; the reason is above."; }
    echo "$wanted" > "$stamp"
    say "environment complete"
fi
if ((with_cpu_adam)); then
    say "DeepSpeed op cpu_adam: building (about a minute; kept in the torch extension cache)"
    "$VENV/bin/python" -c 'from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load(verbose=False)' >/dev/null
    say "DeepSpeed op cpu_adam: ready"
fi
