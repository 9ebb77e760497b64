"""python -m benchmarks.learner [--quick] [--only PART ...]: what the learner makes of a core, beside other ways to
train the same batch.

    steps   two ZeRO-3 ranks on this machine, batches with the seed workload's lengths: ours packed, padded and
            bucketed, a bare PyTorch loop and OpenRLHF's
            own training step, in turns on the same batch; seconds of a step
            (steps.py, ways.py)
    head    log-probs and their backward at 8,192 tokens and a vocabulary of 152k: chunked beside plain
            (head.py)
    flags   OpenRLHF's flags that have their effect, counted where their refusals are decided
    memory  memory and time of a rank beside a plain loop over the same tokens, with `--model` (only when it is named:
            a quarter of an hour of two cores and 9 GB with smollm2)
            (memory.py)
    step    CPU time of a rank's step over the plain loop's, with and without shared prompts, in turns, with `--model`
            (only when it is named: some minutes, 14 GB with smollm2)
            (step_time.py)

Ratios are medians over rounds of what was measured side by side, so that a machine with other work distorts them
little; how busy it was is in `load`. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.command import command_parser, end_as_at_ctrl_c
from openrlhf_tir.config.openrlhf_flags import flags_honoured

from . import head as head_part
from . import memory as memory_part
from . import step_time
from . import steps as steps_part
from .workload import Size

BARS = {
    "packed_over_padded": (1.8, ">="),
    "packed_over_bucketed": (1.3, ">="),
    "step_over_bare_torch": (0.9, ">="),
    "step_over_openrlhf": (1.3, ">="),
    "logprob_memory_ratio": (0.125, "<="),
    "logprob_time_ratio": (1.15, "<="),
    "openrlhf_flags_honoured": (150, ">="),
    "plain_pss_gb": (5.0, "<="),
    "pss_over_plain": (1.2, "<="),
    "pss_two_ranks_over_plain": (1.5, "<="),
    "growth_mb_per_update": (5.0, "<="),
    "step_over_plain": (1.15, "<="),
    "step_over_plain_shared": (0.7, "<="),
}
HIDDEN = 256
"""Width of the head's measurement: that of the steps' model."""
WIDE = 896
"""The hidden size of Qwen2.5-0.5B, the narrowest model with this vocabulary, where arithmetic outweighs all else."""


def reached(name: str, value: float) -> bool:
    bar, sense = BARS[name]
    return value >= bar if sense == ">=" else value <= bar


def steps(quick: bool) -> dict[str, Any]:
    found = steps_part.measure(Size.quick() if quick else Size())
    if wrong := steps_part.differing(found["norms"]):
        raise SystemExit(
            f"{', '.join(wrong)}: another gradient than ours on the same batch, so its time says nothing."
            f" Norms: {found['norms']}"
        )
    print(
        f"\none update of {found['parameters']:,} parameters on {steps_part.RANKS} ranks, medians of"
        f" {len(found['tokens'])} rounds"
    )
    print(f"  {'way':26s}{'s':>8s}{'useful tokens/s':>18s}{'CPU s of all ranks':>20s}")
    for name, row in steps_part.table(found).items():
        print(f"  {name:26s}{row['seconds']:8.2f}{row['tokens_per_s']:18,.0f}{row['cpu_s']:20.2f}")
    return steps_part.ratios(found["seconds"]) | {
        f"cpu_{name}": value for name, value in steps_part.ratios(found["cpu_s"]).items()
    }


def head(quick: bool) -> dict[str, Any]:
    tokens, vocabulary, rounds = (
        (128, 8192, {HIDDEN: 1}) if quick else (head_part.TOKENS, head_part.VOCABULARY, {HIDDEN: 3, WIDE: 1})
    )
    found = {}
    with tqdm(desc="head", unit="process") as bar:
        for hidden, n in rounds.items():
            found[hidden] = head_part.compare(tokens, vocabulary, hidden, n, bar.update)
    print(f"\nlog-probs and backward, {tokens:,} tokens, vocabulary {vocabulary:,}, one thread")
    times = f"{'plain s':>10s}{'chunked s':>11s}{'ratio':>7s}"
    print(f"  {'hidden':>8s}{times}{'plain GiB':>11s}{'chunked GiB':>13s}{'ratio':>8s}   plain measured at")
    for hidden, f in found.items():
        time = f"{f['plain_s']:10.1f}{f['chunked_s']:11.1f}{f['time_ratio']:7.2f}"
        memory = f"{f['plain_gib']:11.2f}{f['chunked_gib']:13.2f}{f['memory_ratio']:8.3f}"
        print(f"  {hidden:8d}{time}{memory}   {', '.join(map(str, f['plain_measured_at']))} tokens")
    ours = found[HIDDEN]
    wide = {
        f"logprob_{what}_ratio_hidden_{WIDE}": found[WIDE][f"{what}_ratio"]
        for what in ("memory", "time")
        if WIDE in found
    }
    return {"logprob_memory_ratio": ours["memory_ratio"], "logprob_time_ratio": ours["time_ratio"], **wide}


def flags(quick: bool) -> dict[str, Any]:
    return {"openrlhf_flags_honoured": flags_honoured()}


def memory(quick: bool, model: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tir-memory-model-") as scratch:
        directory = memory_part.model_directory("tiny" if quick else model, Path(scratch))
        size: dict[str, Any] = {"micro_batches": 1, "updates": 2, "growth_updates": 6} if quick else {}
        return memory_part.measure(memory_part.Work(directory, **size))


def step(quick: bool, model: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tir-step-model-") as scratch:
        directory = memory_part.model_directory("tiny" if quick else model, Path(scratch))
        return step_time.measure(directory, rounds=1 if quick else step_time.ROUNDS)


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {"steps": steps, "head": head, "flags": flags}
BY_NAME: dict[str, Callable[[bool, str], dict[str, Any]]] = {"memory": memory, "step": step}
"""Parts that run only when they are named, with a model."""


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test: small, and of no value as a measurement")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*PARTS, *BY_NAME],
        default=list(PARTS),
        metavar="PART",
        help=f"some of {', '.join([*PARTS, *BY_NAME])}",
    )
    parser.add_argument(
        "--model",
        default="smollm2",
        help="of the parts memory and step: smollm2 (its shape), tiny, or a directory [%(default)s]",
    )
    args = parser.parse_args()
    end_as_at_ctrl_c()
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for part in args.only:
        found |= BY_NAME[part](args.quick, args.model) if part in BY_NAME else PARTS[part](args.quick)
    found["load"] = os.getloadavg()[0]
    print()
    for name, (bar, sense) in BARS.items():
        if name in found:
            print(
                f"  {name:26s}{found[name]:8.3f}   {sense} {bar}  "
                f" {'reached' if reached(name, found[name]) else 'missed'}"
            )
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
