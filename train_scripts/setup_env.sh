#!/usr/bin/env bash
# Make .venv with the pinned requirements, or find it complete and do nothing. Idempotent; needs no network once complete.
#   setup_env.sh [--gpu] [--any-driver] [--with-flash-attn] [--with-cpu-adam]
#     --gpu              install requirements.txt (CUDA 13) instead of requirements-cpu.txt
#     --any-driver       with --gpu: do not check this machine's NVIDIA driver (the nodes that train are others, or have cuda-compat)
#     --with-flash-attn  with --gpu: also build flash-attn. It compiles for tens of CPU hours; without it torch's own flash kernels are used
#     --with-cpu-adam    also build DeepSpeed's cpu_adam, which ds.adam_offload needs
# Environment: PYTHON (interpreter to use), TIR_VENV (where, default .venv), TMPDIR (where pip keeps what it downloads).
# You need no root: what only root can install is named, with the command. bubblewrap is needed only where environment servers run.
set -euo pipefail
if [[ ${1:-} == --help ]]; then sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${TIR_VENV:-.venv}
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
MIN_MEMORY_GB=8
MIN_DRIVER=580 # CUDA 13, which the pinned torch is built with, needs this one or a later one

kind=cpu
any_driver=0
with_cpu_adam=0
with_flash_attn=0
for arg in "$@"; do
    case $arg in
        --gpu) kind=gpu ;;
        --any-driver) any_driver=1 ;;
        --with-flash-attn) with_flash_attn=1 ;;
        --with-cpu-adam) with_cpu_adam=1 ;;
        *) echo "setup_env.sh: unknown option '$arg'. Known: --gpu, --any-driver, --with-flash-attn, --with-cpu-adam." >&2; exit 2 ;;
    esac
done
if [[ $kind == cpu ]] && ((with_flash_attn)); then
    echo "setup_env.sh: --with-flash-attn builds for GPUs. Give --gpu as well, or leave it out: on CPU torch's own kernels are used." >&2
    exit 2
fi
if [[ $kind == gpu ]]; then
    # The CUDA libraries alone unpack to some 8 GB, and pip keeps the downloaded wheels beside them while it installs.
    MIN_DISK_GB=25
    MIN_TMP_GB=8
    requirements=(requirements.txt requirements-nodeps.txt requirements-puzzles.txt)
else
    MIN_DISK_GB=8
    MIN_TMP_GB=2
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
    as_root || refuse "$why is missing. Install it (sudo apt-get install $*), or have your administrator do it, and run this again."
    say "installing $* (apt)"
    apt_get_install "$@" || refuse "$why is missing, and apt-get could not install $*. Install it by hand."
}

apt_get_install() { # packages...
    { apt-get install -y -qq --no-install-recommends "$@" || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; }; } >/dev/null 2>&1
}

check_driver() {
    local versions version
    if ((any_driver)); then return; fi
    if ! command -v nvidia-smi >/dev/null; then
        say "note: this machine has no NVIDIA driver (nvidia-smi), so it was not checked; the nodes that train need driver $MIN_DRIVER or later"
        return
    fi
    versions=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1) && [[ $versions =~ ^[0-9]+\.[0-9] ]] \
        || refuse "nvidia-smi finds no working driver: $(head -c 300 <<<"$versions" | tr '\n' ' '). Load or repair the NVIDIA driver ($MIN_DRIVER or later); if the nodes that train are others, give --any-driver."
    version=$(sort -V <<<"$versions" | head -n 1)
    ((${version%%.*} >= MIN_DRIVER)) \
        || refuse "the NVIDIA driver is $version, and $(grep '^torch==' requirements.txt) is built with CUDA 13, which needs driver $MIN_DRIVER or later. Update the driver; if the nodes that train have a later one, or the package cuda-compat-13-0, give --any-driver."
}

# Triton compiles a small C extension at the first launch of a kernel: vLLM and torch.compile need a compiler and Python's headers on every node with GPUs.
check_triton_compiler() { # the Python that the environment uses
    local missing=() version
    version=$("$1" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')
    if [[ -n ${CC:-} ]]; then
        command -v "${CC%% *}" >/dev/null || refuse "CC is '$CC', and there is no such program. Triton compiles with it at run time: set CC to a C compiler, or unset it."
    elif ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then
        missing+=(gcc)
    fi
    "$1" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || missing+=("$version-dev")
    ((${#missing[@]} == 0)) || apt_install "a C compiler or Python.h of $version, which Triton needs at run time," "${missing[@]}"
}

check_sandbox() {
    if command -v bwrap >/dev/null; then return; fi
    if as_root && { say "installing bubblewrap (apt)"; apt_get_install bubblewrap; }; then return; fi
    say "note: bubblewrap is missing. Nodes that only train do not need it; environment servers that run model-written code do:" \
        "sudo apt-get install bubblewrap there. Without it they confine code by Landlock and seccomp (Linux 6.12 or later), or refuse to start"
}

free_gb() { # of the file system that holds a path, which need not exist yet
    local path=$1
    while [[ ! -d $path ]]; do path=$(dirname "$path"); done
    echo $(($(df -Pk "$path" | awk 'NR == 2 {print $4}') / 1024 / 1024))
}

check_machine() {
    local disk_gb tmp_gb memory_kb cgroup
    disk_gb=$(free_gb "$VENV")
    ((disk_gb >= MIN_DISK_GB)) || refuse "the environment $VENV needs $MIN_DISK_GB GB of free disk, and there are $disk_gb GB. Free some, or set TIR_VENV to a bigger disk."
    tmp_gb=$(free_gb "${TMPDIR:-/tmp}")
    ((tmp_gb >= MIN_TMP_GB)) || refuse "pip needs $MIN_TMP_GB GB in ${TMPDIR:-/tmp} while it installs, and there are $tmp_gb GB. Free some, or set TMPDIR to a bigger disk."
    memory_kb=$(awk '/^MemTotal:/ {print $2}' /proc/meminfo)
    cgroup=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
    [[ $cgroup == max ]] || ((cgroup / 1024 >= memory_kb)) || memory_kb=$((cgroup / 1024))
    ((memory_kb >= MIN_MEMORY_GB * 1000 * 1000)) || refuse "training needs $MIN_MEMORY_GB GB of memory, and this machine has $((memory_kb / 1024 / 1024)) GB."
    if ! command -v c++ >/dev/null; then
        ((with_cpu_adam == 0)) || refuse "building cpu_adam needs a C++ compiler (c++), and there is none. Install one: apt-get install g++"
        say "note: there is no C++ compiler (c++); ds.adam_offload$([[ $kind == cpu ]] || echo ' and train.colocate_all') would need one (apt-get install g++)"
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
    say "packages: requirements-nodeps.txt"
    "${pip[@]}" --no-deps --no-build-isolation -r requirements-nodeps.txt
}

stamp=$VENV/.tir-setup
packaging=$(sed '/^\[tool\.pytest/,$d' pyproject.toml) # without the settings of tools, which ask for no other packages
wanted=$(cat "${requirements[@]}" - <<<"$packaging" | sha256sum | cut -c1-16)
python=$(find_python)
# What only this machine can tell is checked at every call: nodes may share an environment that is complete.
if [[ $kind == gpu ]]; then
    check_driver
    check_triton_compiler "$python"
fi
check_sandbox

if [[ $(cat "$stamp" 2>/dev/null) != "$wanted" ]]; then
    check_machine
    [[ -x $VENV/bin/python ]] || "$python" -c 'import ensurepip' 2>/dev/null || apt_install "Python's venv module" "$(basename "$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')")-venv"
    say "environment: $VENV ($("$python" --version))"
    [[ -x $VENV/bin/python ]] || "$python" -m venv "$VENV"
    "install_$kind"
    install_puzzles
    "$VENV/bin/python" -m pip install --disable-pip-version-check -qq --no-deps --no-build-isolation -e .
    say "importing everything once (compiles what is used, and shows that the installation works)"
    unset PYTHONDONTWRITEBYTECODE # set in many container images; every process of a run would compile torch, vLLM and the rest anew: 12 s of CPU each
    worker=", vllm.v1.worker.${kind}_worker"
    if [[ $kind == gpu ]] && ! nvidia-smi -L >/dev/null 2>&1; then worker=; fi # vLLM's worker for GPUs imports only where there is one
    "$VENV/bin/python" -c "import openrlhf_tir.engines.start, vllm.v1.engine.async_llm$worker, ray.dashboard.dashboard, fastapi, math_verify" >/dev/null 2>"$VENV/import.log" &
    others=$!
    "$VENV/bin/python" -c 'import openrlhf_tir.cluster.jobs.train, openrlhf_tir.learner.zero3, datasets, matplotlib.pyplot, tensorboard' >/dev/null || refuse "the training packages do not import; the reason is above."
    wait "$others" || { cat "$VENV/import.log" >&2; refuse "vLLM or Ray does not import; the reason is above."; }
    echo "$wanted" > "$stamp"
    say "environment complete"
fi
if ((with_flash_attn)) && ! "$VENV/bin/python" -c 'import flash_attn' 2>/dev/null; then
    say "flash-attn: building (tens of CPU hours; MAX_JOBS limits how many files compile at once)"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off --quiet --no-deps --no-build-isolation -r requirements-flash-attn.txt
    say "flash-attn: ready"
fi
if ((with_cpu_adam)); then
    say "DeepSpeed op cpu_adam: building (about a minute; kept in the torch extension cache)"
    "$VENV/bin/python" -c 'from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load(verbose=False)' >/dev/null
    say "DeepSpeed op cpu_adam: ready"
fi
