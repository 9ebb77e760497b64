#!/usr/bin/env bash
# Resolver check, needs an index: do the pins agree with what the packages themselves ask for? Minutes; the static part is tests/unit/house/test_requirements.py.
#   check_requirements.sh [cpu|gpu ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${TIR_VENV:-.venv}/bin/python

check() { # file, what goes in with --no-deps
    echo "resolving $1"
    "$python" -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --report /dev/null -r "$1" -r requirements-puzzles.txt
    echo "looking up $2"
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --dest "$(mktemp -d)" -r "$2"
}

for kind in "${@:-cpu}"; do
    case $kind in
        cpu) check requirements-cpu.txt requirements-cpu-nodeps.txt ;;
        gpu) check requirements.txt requirements-nodeps.txt ;;
        *) echo "check_requirements.sh: unknown set '$kind'. Known: cpu, gpu." >&2; exit 2 ;;
    esac
done
echo "requirements: all resolve"
