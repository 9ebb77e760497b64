"""Reading bash without running it: the words that each command of a script would get."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from openrlhf_tir.errors import ConfigError

pytest.importorskip("tree_sitter_bash")

from openrlhf_tir.config.integrations.bash_script import Script, read_script, read_text, readable, unknowns
from openrlhf_tir.config.integrations.bash_script.arithmetic import calculate


def read(text: str, **environ: str) -> Script:
    return read_text(text, environ=environ)


def words(text: str, **environ: str) -> list[str]:
    """The words of the only command."""
    (command,) = read(text, **environ).commands
    return list(command.words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run a  b", ["run", "a", "b"]),
        ("run --a 1 \\\n  --b 2", ["run", "--a", "1", "--b", "2"]),
        ("X='1 2'; run $X \"$X\"", ["run", "1", "2", "1 2"]),
        ("X=a; run pre-$X.post ${X}b", ["run", "pre-a.post", "ab"]),
        ("run ${X:-d} ${X-e} ${X:+f}", ["run", "d", "e"]),
        ("X=; run ${X:-d} \"${X-e}\" ${X:+f}", ["run", "d", ""]),
        ("X=1; run ${X:-d} ${X:+f}", ["run", "1", "f"]),
        ("Y=2; run ${X:-a/$Y/b}", ["run", "a/2/b"]),
        ("run ${X:-\"a b\"}", ["run", "a b"]),
        ("A=(1 '2 3'); run ${A[@]} \"${A[@]}\"", ["run", "1", "2", "3", "1", "2 3"]),
        ("L=a,b; IFS=, read -ra A <<< \"$L\"; run \"${A[@]}\"", ["run", "a", "b"]),
        ("IFS=, read -ra A <<< ',a,,b,'; run \"${A[@]}\"", ["run", "", "a", "", "b"]),
        ("IFS=, read X Y <<< 'a,b,'; IFS=, read Z <<< 'c,'; run $X $Y $Z", ["run", "a", "b", "c"]),
        ("IFS=, read X Y <<< 'a,b,c,'; IFS=, read Z <<< 'd,e'; run $X $Y $Z", ["run", "a", "b,c,", "d,e"]),
        ("IFS=': ' read -r K V <<< ' k:  v w '; run $K \"$V\"", ["run", "k", "v w"]),
        ("IFS= read -r L <<< ' a '; run \"$L\"", ["run", " a "]),
        ("X=1; unset X; Y=2; run ${X:-a} $Y", ["run", "a", "2"]),
        ("A=(1 '2 3'); run ${A[1]} ${#A[@]} $A", ["run", "2", "3", "2", "1"]),
        ("A=(); run \"${A[@]}\" z", ["run", "z"]),
        ("A=(a); A+=(b c); run \"${A[*]}\"", ["run", "a b c"]),
        ("X=a; X+=b; run $X", ["run", "ab"]),
        ("A=(a b); A+=c; B+=(d); C+=e; run ${A[@]} ${B[@]} $C", ["run", "ac", "b", "d", "e"]),
        ("declare -A L=([s]=1e-6 [\"b\"]='5 6'); k=b; run ${L[s]} \"${L[$k]}\"", ["run", "1e-6", "5 6"]),
        ("declare -A L; L[s]=1; L[b]=2; run ${L[b]}", ["run", "2"]),
        ("run --x \"$NOTHING\" --y", ["run", "--x", "", "--y"]),
        ("A=(a # no\n # --b\n c); run ${A[@]}", ["run", "a", "c"]),
        ("run 'a $X' \"a \\$X \\\"q\\\"\" a\\ b", ["run", "a $X", 'a $X "q"', "a b"]),
        ("name() {\n  echo run-$1\n}\nrun $(name 3)", ["run", "run-3"]),
        ("X=/a/b.tar.gz; run ${X##*/} ${X%.*} ${X%%.*} ${X#/a/}", ["run", "b.tar.gz", "/a/b.tar", "/a/b", "b.tar.gz"]),
        ("X=abcd; run ${X: -3:3} ${X: -2} ${X:1}", ["run", "bcd", "cd", "bcd"]),
        ("X=a/b/c; run ${X//\\//-} ${X/b/z} ${X:2:3} ${X^^}", ["run", "a-b-c", "a/z/c", "b/c", "A/B/C"]),
        ("N=8; run $((N / 2 + 1)) $(( ${N} * 2 ))", ["run", "5", "16"]),
        ("X=$(echo a b); run \"$X\" $(basename /q/model.bin .bin) $(dirname /q/r)", ["run", "a b", "model", "/q"]),
        ("X=$(cat <<EOF\n--a 1 \\\n--b 2\nEOF\n); run $X", ["run", "--a", "1", "--b", "2"]),
        ("read -r -d '' X <<EOF\n--a $Y \\\n  --b \"2 3\"\nEOF\nrun $X", ["run", "--a", "y", "--b", '"2', '3"']),
        ("read -r -d '' X <<'EOF'\n$Y\nEOF\nrun $X", ["run", "$Y"]),
        ("A=(1 '2 3'); read -r -d '' X <<EOF\n${A[@]} ${A[*]:1} \"${A[@]}\"\nEOF\nrun \"$X\"",
         ["run", "1 2 3 2 3 \"1 2 3\""]),
        ("set -- p 'q r'; read -r -d '' X <<EOF\n$@ $* $1 $# ${@:2}\nEOF\nrun \"$X\"",
         ["run", "p q r p q r p 2 q r"]),
        ("set -- p; read -r -d '' X <<EOF\nit's \\$@ \\\\$@ \"$((1 + 2))\" `echo \"a  b\"`\nEOF\nrun \"$X\"",
         ["run", "it's $@ \\p \"3\" a  b"]),
        ("read -r -d '' X <<EOF\n\\\n--a 1 \\\n--b $(echo \"2 3\")\nEOF\nrun $X", ["run", "--a", "1", "--b", "2", "3"]),
        ("A=(1 '2 3'); cat > s.sh <<EOF\nrun ${A[@]} \\$1\nEOF\nbash s.sh p", ["run", "1", "2", "3", "p"]),
        ("A=(1 '2 3'); : ${X:=\"${A[@]}\"}; run \"$X\" \"${Z:-'q' $Y}\"", ["run", "1 2 3", "'q' y"]),
        ("X=a; run \"$X $Y  ${X} ${Y} $((1 + 1)) $((1 + 1)) $(echo b) $(echo b)\"", ["run", "a y  a y 2 2 b b"]),
        ("A=1 B=2 run x", ["run", "x"]),
        ("eval run --a $Y", ["run", "--a", "y"]),
        ("C='run --a 1'; $C --b 2", ["run", "--a", "1", "--b", "2"]),
        ("read -r A B < <(echo 1 2 3); run $B", ["run", "2", "3"]),
        ("cat > a.txt <<EOF\n--x 1\n-y\nEOF\nmapfile -t A < a.txt; run \"${A[@]}\"", ["run", "--x 1", "-y"]),
        ("cat > a.txt <<EOF\n--x 1\n-y\nEOF\nrun $(cat a.txt)", ["run", "--x", "1", "-y"]),
        ("run $((-2 ** 2)) $((2 ** 3 ** 2))", ["run", "4", "512"]),
        ("N=64; run $((N > 32 ? 8 : 4)) $((N % 7 * 2)) $((2 ** 3 ** 1))", ["run", "8", "2", "8"]),
        ("N=64; run $((N == 64 && !0)) $((1 << 4 | 1))", ["run", "1", "17"]),
        ("run $((-7 / 2)) $((-7 % 3)) $((0x10)) $((010)) $((- (2 + 3)))", ["run", "-3", "-1", "16", "8", "-5"]),
        ("set -- a b; A=(1 2 3); run $(($# + ${#A[@]})) $(( ${#A[*]} ))", ["run", "5", "3"]),
        ("ROOT=<fill me in>\nrun $ROOT", ["run", "<fill", "me", "in>"]),
        ("X=a; run --x $X \\\n\n", ["run", "--x", "a"]),
        ("run --x \\", ["run", "--x"]),
        ("X=/a; Z=/b; run a.b=[$X/c,$Z] c=\\[$X,${Z}\\]", ["run", "a.b=[/a/c,/b]", "c=[/a,/b]"]),
        ("X=/a; A=(a.b=[$X/c] c=\\[$X\\]); run \"${A[@]}\"", ["run", "a.b=[/a/c]", "c=[/a]"]),
        ("set -- p 'q r' s; run \"${@:2}\" ${@:1:1} \"${*:3}\"", ["run", "q r", "s", "p", "s"]),
        ("A=(a 'b c'); run \"${A[@]:1}\" ${A[@]:0:1} \"${A[@]/#/--}\"", ["run", "b c", "a", "--a", "--b c"]),
        ("X='#a#'; run ${X//#/b}", ["run", "bab"]),
        ("A=($(ls) b); run \"${A[@]:1}\"", ["run", "${A[@]:1}"]),
        ("X=a.b.a; run ${X/#a/c} ${X/%a/c} ${X/a/c}", ["run", "c.b.a", "a.b.c", "c.b.a"]),
        ("set -- p 'q r'; run a > log 2>&1 b \"$@\"", ["run", "a", "b", "p", "q r"]),
        ("((T = 2 * 8)); let B=T*8 C=B-1; run $T $B $C", ["run", "16", "128", "127"]),
        ("N=2; ((N += 3)); ((N++)); ((--N)); ((M = N, M *= 2)); run $N $M", ["run", "5", "10"]),
        ("A=(a b c); run ${!A[@]} \"${!A[*]}\"", ["run", "0", "1", "2", "0 1 2"]),
        ("declare -A A=([x]=1); A[y]=2; run \"${!A[@]}\"", ["run", "x", "y"]),
        ("Z=A; A=7; run ${!Z}", ["run", "7"]),
        ("Z=A; A=7; run ${!Z:-8}; unset A", ["run", "7"]),
        ("Z=A; run ${!Z:-8} ${!Z:+9}", ["run", "8"]),
        ("gpu=3; N=$(($(nvidia-smi --query-gpu=name | wc -l) / 2)); run $gpu", ["run", "3"]),
        ("gpu=3; (($(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l) > 2)); run $gpu", ["run", "3"]),
        ("run a$(echo {x,y})", ["run", "ax", "y"]),
        ("A=(a b c); i=1; run ${A[i]} ${A[$i]} ${A[i + 1]} ${A[$((i - 1))]} ${A[-1]} ${A[7]}", ["run", *"bbcac"]),
        ("A=([0]=a [1]=b); A+=(c); declare -A B=([x]=1); run ${A[1]} ${A[2]} ${B[x]} ${B[y]}", ["run", *"bc1"]),
        ("run {1..3} a{b,c}d {03..1} {$Y,b} {,x} {1..2}{a,b}",
         ["run", "1", "2", "3", "abd", "acd", "03", "02", "01", "y", "b", "x", "1a", "1b", "2a", "2b"]),
        ("X=q; run '{a,b}' \"{a,b}\" {a} {} \\{a,b\\} ${Z:-{1,2}} b{c}d \"$X\"{a,b}",
         ["run", "{a,b}", "{a,b}", "{a}", "{}", "{a,b}", "{1,2}", "b{c}d", "q{a,b}"]),
        ("run $'Q: {}\\nA:\\t\\'x\\'' --x=$'\\x41\\102\\u00e9\\q\\ud800'",
         ["run", "Q: {}\nA:\t'x'", "--x=ABé\\q\\ud800"]),
        ("printf -v N 'run-%s_%03d%%' a 7; run $N $(printf '%s-%d\\n' b 8)", ["run", "run-a_007%", "b-8"]),
        ("L='A=1 B=2'; export $L C $(cat <<EOF\nD=3\nEOF\n); run $A $B $C $D", ["run", "1", "2", "3"]),
        ("run $(seq 2) $(seq 3 -1 1)", ["run", "1", "2", "3", "2", "1"]),
    ],
)  # fmt: skip
def test_words_are_those_that_bash_would_pass(text, expected):
    assert [readable(word) for word in words(text, Y="y")] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('if [[ ${1} != "slurm" ]]; then run a; fi', ["a"]),
        ('if [ -z "$X" ]; then run a; else run b; fi', ["a"]),
        ("X=1; if [ -z $X ]; then run a; elif [ $X -eq 1 ]; then run b; else run c; fi", ["b"]),
        ("[[ -n $X ]] && run a", []),
        ('[ -n "$X" ] || run a', ["a"]),
        ("X=2; if ((X > 1)); then run a; fi", ["a"]),
        ("case ${M:-grpo} in ppo) run a;; gr*|x) run b;; *) run c;; esac", ["b"]),
        ("for i in 1 2; do run $i; done", ["1", "2"]),
        ("for ((i = 0; i < 3; i++)); do run $i; done", ["0", "1", "2"]),
        ("for ((i = 0; i < 4; i++)); do [ $i = 1 ] && continue; [ $i = 3 ] && break; run $i; done", ["0", "2"]),
        ("for ((i = 0; i < $(nproc); i++)); do run a; done", ["a"]),
        ("i=0; while ((i < 2)); do run $i; ((i++)); done", ["0", "1"]),
        (
            "i=0; while [ $i -lt 2 ]; do run $i; i=$((i + 1)); done; until [ $i -eq 0 ]; do ((i--)); run $i; done",
            list("0110"),
        ),
        ("while read -r a b; do run $b; done <<EOF\nx 1\ny 2 3\nEOF", ["1", "2"]),
        ("cat > l <<EOF\nx 1\ny 2\nEOF\nwhile read -r a b; do [[ $a == x ]] && continue; run $b; done < l", ["2"]),
        ("until run a; do sleep 1; done", ["a"]),
        ("f() { run $1; }; f a; f b", ["a", "b"]),
        ("run a; exit; run b", ["a"]),
        ("(X=1; run $X); run ${X:-2}", ["1", "2"]),
        ("cd /; (cd /nowhere; run $PWD); run $PWD", ["/nowhere", "/"]),
        ("f() { run a; }; (f() { run b; }; f); f", ["b", "a"]),
        ("echo run a; run b | tee log; run c &", ["b", "c"]),
        ("set -- a b; shift; run $1", ["b"]),
        ("bash -lc 'X=1; run a$X'; srun -n1 sh -c \"run b\"", ["a1", "b"]),
        ("cat > s.sh <<'EOF'\nrun $1\nEOF\nchmod +x s.sh; ./s.sh a; srun -N 2 bash s.sh b", ["a", "b"]),
        ("A=(verl.trainer.main_ppo a=b); bash <<EOF\nrun ${A[@]}\nEOF", ["verl.trainer.main_ppo"]),
        ("cat > s.sh <<'EOF'\nrun verl.trainer.main_ppo\nEOF\nssh host", ["verl.trainer.main_ppo"]),
        ("ray job submit --working-dir /a/verl/ -- 'X=1 run -m verl.trainer.main_ppo a=b'", ["-m"]),
        (
            "run \"data.train_files=['/a/verl/x', '-m verl.y main_ppo']\"",
            ["data.train_files=['/a/verl/x', '-m verl.y main_ppo']"],
        ),
        ("run a < s.sh", ["a"]),
        ("words; command -v run; text; run a", ["a"]),
        ('X=1; if [ "$X" = 2 -o "$X" = 1 ]; then run a; fi', ["a"]),
        ('X=1; if [ -n "$X" -a ! "$X" = 1 ]; then run a; else run b; fi', ["b"]),
        ("if [ ! -d /nowhere ] && test 3 -gt 2; then run a; fi", ["a"]),
        ("[[ 10 < 9 ]] && run a; [[ 10 -lt 9 ]] && run b", ["a"]),
        ("X='*'; if [ $X = abc ]; then run a; fi; if [[ abc == $X ]]; then run b; fi", ["b"]),
        ("if test 1 -eq 2 -o x = x -a -n y; then run a; fi", ["a"]),
        ("if ! curl -s http://h; then echo down; exit 1; fi; run a", ["a"]),
        ("[ -f /nowhere/rows.jsonl ] || { echo no rows; exit 1; }; run a", ["a"]),
        ('if [ -z "$TOKEN" ]; then exit 1; else run a; fi; run b', ["a", "b"]),
        ("if [ -f /nowhere ]; then X=1; else exit 1; fi; run a", ["a"]),
        ("if [ -f /nowhere ]; then X=1; elif curl -s http://h; then exit 1; fi; run a", ["a"]),
        ("X=1; if [ $X = 2 ]; then run a; elif [ $X = 1 ]; then exit; fi; run b", []),
        ("X=1; if [ $X = 2 ]; then run a; else exit 1; fi; run b", []),
        ("if ready; then exit 1; else exit 2; fi; run a", ["a"]),
        ("if [ $(hostname) ]; then exit 1; fi; run a", ["a"]),
        ('if [ "$(hostname)" != x ]; then exit 1; fi; run a', ["a"]),
        ("[ 1 -lt 1 ] || [ 1 -gt 1 ] || run a; [ 1 -le 1 ] && [ 1 -ge 1 ] && [ 1 -ne 2 ] && run b", ["a", "b"]),
        ("if test x = x -o x = x -a 1 = 2; then run a; fi", ["a"]),
        ("case $(uname -m) in x86_64) run a;; *) exit 1;; esac; run b", ["b"]),
        ("case 1 in x86_64) run a;; *) exit 1;; esac; run b", []),
        ("for x in 1 2 3; do if [ $x = 2 ]; then break; fi; run $x; done; run z", ["1", "z"]),
        ("for x in 1 2 3; do [ $x = 2 ] && continue; run $x; done; run z", ["1", "3", "z"]),
        ("for x in 1 2; do if curl -s http://h; then continue; fi; run $x; done", ["1", "2"]),
        ("for x in 1 2; do for y in a b; do break; done; run $x$y; done", ["1a", "2a"]),
        ("f() { break; }; for x in 1 2; do f; (continue); bash -c break; run $x; done", ["1", "2"]),
        ("while sleep 1; do if [ 1 = 1 ]; then continue; fi; run a; done; break; run b", ["a", "b"]),
        ("for x in 1 2; do while sleep 1; do break; done; run $x; done", ["1", "2"]),
        ("f() { curl -s http://h && return; run a; }; f", ["a"]),
        ("if [ $# -lt 1 ]; then exit 1; fi; run a", []),
        ('if [ -z "$1" ]; then exit 1; fi; run a', []),
        ("X=1; if [ $X -eq 1 ]; then run a; exit 0; fi; run b", ["a"]),
        ("if curl -s http://h; then run openrlhf.cli.train_sft; exit; fi; run b", ["openrlhf.cli.train_sft"]),
    ],
)
def test_commands_are_those_that_bash_would_start(text, expected):
    assert [command.words[1] for command in read(text).commands if command.words[0] == "run"] == expected


FLAGS = """
LR=1; N=2
while [[ $# -gt 0 ]]; do
  case "$1" in
    --lr) LR="$2"; shift 2 ;;
    --n) N=$2; shift; shift ;;
    --) shift; break ;;
    *) echo "unknown $1"; exit 1 ;;
  esac
done
run $LR $N "$@"
"""


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (FLAGS, [], ["1", "2"]),
        (FLAGS, ["--lr", "3", "--n", "4"], ["3", "4"]),
        (FLAGS, ["--n", "4", "--", "--lr", "5"], ["1", "4", "--lr", "5"]),
        (FLAGS, ["--n", "4", "--what"], None),
        ('while [ -n "$1" ]; do A+=($1); shift; done; run "${A[@]}"', ["a", "b", "c"], ["a", "b", "c"]),
        ("while (( $# )); do X=$1; shift; done; run $X", ["a", "b"], ["b"]),
        ("while (($# > 9)); do shift; done; run $1", ["a"], ["a"]),
        ("while true; do run a; sleep 9; break; done", [], ["a"]),
        ("while [ $# -gt 0 ]; do run $1; done", ["a"], ["a"]),
        (
            'while [ $# -gt 0 ]; do if [ "$1" = --lr ]; then shift; LR=$1; fi; shift; done; run $LR',
            ["--lr", "3"],
            ["3"],
        ),
        ("while [ $# -gt 0 ]; do [ $1 = a ] && { shift; continue; }; A+=$1; shift; done; run $A", list("xay"), ["xy"]),
        ("while [ $# -gt 0 ]; do for k in a b; do break; done; X=$1; shift; done; run $X", ["a", "b"], ["b"]),
        ('X=1; until [ -z "$1" ]; do X=$1; shift; done; run $X', [], ["1"]),
        ("until [ $# -eq 0 ]; do X=$1; shift; done; run $X", ["a", "b"], ["b"]),
        ('while [[ "$1" =~ ^- && ! "$1" == "--" ]]; do X=$1; shift; done; run $X $1', ["-a", "--", "-b"], ["-a", "--"]),
    ],
)
def test_the_arguments_of_a_script_are_read_as_its_loop_reads_them(text, arguments, expected):
    script = read_text(f"set -- {shlex.join(arguments)}\n{text}", environ={})
    runs = [list(command.words[1:]) for command in script.commands if command.words[0] == "run"]
    assert runs[-1:] == ([] if expected is None else [expected])


def test_flags_by_getopts_are_said_and_taken_as_not_given():
    script = read_text(
        'while getopts "l:v" flag; do\n  case $flag in l) LR=$OPTARG;; *) exit 1;; esac\ndone\n'
        'shift $((OPTIND - 1))\nrun ${LR:-1} "$@"',
        environ={},
        arguments=["-l", "5"],
    )
    assert [command.words for command in script.commands] == [("run", "1", "-l", "5")]
    (note,) = script.notes
    assert re.search(r"\b1:", note)


@pytest.mark.parametrize(
    "text",
    [
        "n=0; while [ $n -lt 3 ]; do if python train_ppo.py; then break; fi; n=$((n + 1)); done",
        "for ((n = 0; n < 3; n++)); do python train_ppo.py && break; sleep 9; done",
        "n=0; while [ $n -lt 3 ]; do python train_ppo.py; n=$(expr $n + 1); done",
        "for ((n = 0; n < 3; n++)); do python train_ppo.py; n=$(hostname); done",
    ],
)
def test_rounds_that_start_the_same_training_or_that_only_a_run_can_count_are_one(text):
    script = read(text)
    assert [command.words[:2] for command in script.commands if "train_ppo.py" in command.words] == [
        ("python", "train_ppo.py")
    ]
    # about the loop itself; notes about a command quote it
    assert any(re.search(r"\b1\b", note) and "`" not in note for note in script.notes)


@pytest.mark.parametrize(
    "text",
    [
        "for i in $(seq 1 60); do if ping; then break; fi; if [ $i -eq 60 ]; then exit 1; fi; sleep 1; done",
        "for i in {1..60}; do [ -f /nowhere ] && break; [ $i = 60 ] && exit 1; sleep 1; done",
        "i=0; while [ $i -lt 9 ]; do ping && break; sleep 1; i=$((i + 1)); done; if [ $i -eq 9 ]; then exit 1; fi",
        "i=0; while [ ! -f /nowhere ] && [ $i -lt 9 ]; do sleep 1; ((i++)); done; [ $i -ge 9 ] && exit 1",
        "for ((i = 1; i <= 9; i++)); do ping && break; sleep 1; done; ((i > 9)) && exit 1",
    ],
)
def test_the_limit_of_a_loop_that_waits_does_not_end_the_script(text):
    assert read(f"{text}\npython train_ppo.py").commands[-1].words == ("python", "train_ppo.py")


def test_a_loop_that_waits_counts_as_one_round_so_that_what_follows_is_read():
    script = read("for i in $(seq 150); do ping a; ping b; sleep 2; ping c; done; run")
    assert [command.words[0] for command in script.commands] == ["ping", "ping", "sleep", "ping", "run"]
    assert not script.notes


@pytest.mark.parametrize("text", ["$(printf '%q' a)", "$(seq 3 1)", "$(seq 1 0 3)", "${A[$(hostname)]}", "${!A:-b}"])
def test_what_is_not_read_is_unknown(text):
    assert unknowns(words(f"A=(1 2); run {text}")[1]) == [text]


@pytest.mark.parametrize("expression", ["1 / 0", "x = 1", "1 ? 2", "16#ff", "++N", "-- N"])
def test_arithmetic_that_cannot_be_computed_stays_as_it_is_written(expression):
    (word,) = words(f"N=8\nrun $(({expression}))")[1:]
    assert unknowns(word) == [" ".join(f"$(({expression}))".split())]


@pytest.mark.parametrize("text", ["$(touch x)", "`touch x`", "a[$(touch x)]", "1)) | (2", "1)) > (2"])
def test_arithmetic_starts_nothing_and_writes_nothing(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        calculate(text)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "text",
    [
        "mapfile -t A < <(nvidia-smi)",
        "read -r A < <(hostname)",
        "read -r B A < <(hostname)",
        "read A < nowhere.txt",
        "IFS=$(hostname) read -r B A <<< x",
        "read A",
        "A=8; ((++B, A = $(nproc)))",
        "A=8; let A+=$(nproc)",
        "A=8; run2 $((++A))",
        "printf -v A '%q' x",
    ],
)
def test_what_a_run_would_read_into_a_variable_is_unknown_and_not_empty(text):
    (word,) = read(f"{text}\nrun $A").commands[-1].words[1:]
    assert unknowns(word)


def test_what_is_read_of_a_command_keeps_the_command_as_its_source():
    assert [unknowns(word) for word in words('read -r A B <<< "$(hostname)"; run $A $B')[1:]] == [["$(hostname)"]] * 2


@pytest.mark.parametrize(
    "text", ["while read -r A B; do run $A $B; done < nowhere.txt", "cat rows | while read -r A B; do run $A $B; done"]
)
def test_lines_that_are_not_here_make_unknown_words_and_not_empty_ones(text):
    (words_of_run,) = (command.words for command in read(text).commands if command.words[0] == "run")
    assert all(map(unknowns, words_of_run[1:])) and len(words_of_run) == 3


def test_a_comment_ends_a_continued_command_as_in_bash_and_what_is_below_it_is_said_to_be_lost():
    script = read("python -m openrlhf.cli.train_sft --a 1 \\\n  # --b 2 \\\n  --c 3\n")
    (command,) = script.commands
    assert command.words[3:] == ("--a", "1")
    assert any("--c" in note and re.search(r"\b3\b", note) for note in script.notes)


def test_what_only_a_run_can_tell_keeps_its_source_through_variables_and_nested_shells():
    script = read('N=$(nvidia-smi -L | wc -l)\nsrun bash -c "python -m openrlhf.cli.train_sft --n $N"')
    (command,) = script.commands
    assert unknowns(command.words[-1]) == ["$(nvidia-smi -L | wc -l)"]
    assert readable(command.words[-1]) == "$(nvidia-smi -L | wc -l)"


def test_an_unset_variable_in_a_training_command_is_said_and_elsewhere_not():
    assert read("echo $NOTHING; run $NOTHING").notes == []
    (note,) = read("python -m openrlhf.cli.train_sft --a $NOTHING").notes
    assert "$NOTHING" in note


@pytest.mark.parametrize("text", ["if ready; then X=1; fi", "if [ 1 = 2 ]; then X=1; elif ready; then X=2; fi"])
def test_a_condition_that_is_taken_to_hold_is_said(text):
    script = read(f"{text}; run a")
    assert [command.words for command in script.commands] == [("ready",), ("run", "a")]
    (note,) = script.notes
    assert "`ready`" in note


@pytest.mark.parametrize(
    ("text", "source", "word"),
    [
        ("[ $(nproc) -ge 8 ] && X=2", "`[ $(nproc) -ge 8 ]`", "2"),
        ("[[ $(nproc) -ge 8 ]] || export X=2", "`[[ $(nproc) -ge 8 ]]`", ""),
        ("case $(hostname) in a) X=1;; *) X=2;; esac", "`*)`", "2"),
        ("case $(hostname) in a) X=1;; esac", "`case $(hostname)`", ""),
        ("export $(xargs < /nowhere/.env)", "`export $(xargs < /nowhere/.env)`", ""),
    ],
)
def test_a_value_that_depends_on_what_only_a_run_can_tell_is_said(text, source, word):
    script = read(f'{text}; run "$X"')
    assert script.commands[-1].words == ("run", word)
    (note,) = script.notes
    assert source in note and re.search(r"\b1:", note)


def test_nothing_of_a_script_is_run(tmp_path):
    (tmp_path / "s.sh").write_text(f"touch {tmp_path}/made\nX=$(touch {tmp_path}/made2)\nrun > {tmp_path}/made3\n")
    read_script(tmp_path / "s.sh")
    assert [path.name for path in tmp_path.iterdir()] == ["s.sh"]


def test_a_script_that_calls_itself_comes_to_an_end(tmp_path):
    (tmp_path / "s.sh").write_text("f() { f; }\nf\nbash s.sh\nrun a\n")
    assert read_script(tmp_path / "s.sh", cwd=tmp_path).notes


def test_another_script_is_read_with_its_arguments(tmp_path):
    (tmp_path / "inner.sh").write_text("run $1 $OUTER\n")
    (tmp_path / "s.sh").write_text("OUTER=o\nsource inner.sh a\nbash inner.sh b\n")
    commands = read_script(tmp_path / "s.sh", environ={}, cwd=tmp_path).commands
    assert [command.words for command in commands] == [("run", "a", "o"), ("run", "b", "o")]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_is_no_text_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "s.sh").write_bytes(content)
    with pytest.raises(ConfigError):
        read_script(tmp_path / "s.sh")


@pytest.mark.parametrize("text", ["if", "run 'a", "run $(", "((", "case x in", "run ${X", "\0", "run `a`", "<<EOF"])
def test_text_that_is_not_bash_raises_nothing(text):
    read(text)


OWN = sorted((Path(__file__).parent / "scripts").glob("*.sh"))
STUB = """#!/bin/sh
{ printf '%s\\0' "${0##*/}" "$@"; printf '\\n\\0'; } >> "$STUB_LOG"
"""


@pytest.mark.parametrize("path", [path for path in OWN if path.stem != "slurm_wrapper"], ids=lambda path: path.stem)
def test_training_commands_get_the_words_that_bash_itself_would_give_them(path, tmp_path):
    """Bash runs the script with programs that only write down their words."""
    for name in ("python", "python3", "deepspeed", "ray"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "STUB_LOG": str(log)}
    subprocess.run(["bash", path], env=environ, cwd=tmp_path, capture_output=True, check=False)
    started = [record.split("\0")[:-1] for record in log.read_text().split("\n\0")[:-1]]
    read_words = [list(command.words) for command in read_script(path, environ=environ, cwd=tmp_path).commands]
    assert [words for words in read_words if words[0] in ("python", "python3", "deepspeed", "ray")] == started


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("cat > reward.py <<'EOF'\nx = $X\nEOF\n", "reward.py"),
        ("cat <<'EOF' > reward.py\nx = $X\nEOF\n", "reward.py"),
        ("D=a; cat <<'EOF' >$D/reward.py\nx = $X\nEOF\n", "a/reward.py"),
        ("tee reward.py <<'EOF' >/dev/null\nx = $X\nEOF\n", "reward.py"),
    ],
)
def test_files_that_a_script_writes_from_here_documents_are_known(text, path):
    assert read(text).files == {path: "x = $X\n"}


@pytest.mark.parametrize("text", ["a + 1", "x", "B = 5", "0x", "3f"])
def test_arithmetic_takes_no_name_for_a_number(text):
    """Bash takes the name of a variable that is unset for 0."""
    with pytest.raises(ValueError):
        calculate(text)
    assert calculate("0xFf + 1") == 256
