"""Measure how long a run takes to start on a large data set, and how much memory its driver needs.

    python -m benchmarks.data [--rows 1790000] [--distinct 17398] [--model DIR] [--directory DIR]

The data set is made up in the shape of DAPO-Math-17k as it is published: one parquet file with the columns
`data_source`, `prompt` (chat messages), `ability`, `reward_model` and `extra_info`, in which `--distinct` problems are
repeated until there are `--rows` rows. Each start is a process of its own that does what `openrlhf-tir train` does
between its command line and Ray: the preflight's check of every row, the prompts, the digests that a checkpoint keeps,
and the order of the prompts. The first start finds an empty cache, the second one what the first has left.

Without `--model` the tokenizer is a byte-level BPE that is trained on the problems themselves. The last line is one
JSON object: seconds, CPU seconds and the peak of the process's PSS for each start, and its stages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.command import command_parser

HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer:"
    " $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'
"""The words that DAPO-Math-17k wraps around each problem."""
WORDS = [
    "Let", "be", "a", "the", "triangle", "with", "side", "lengths", "of", "and", "find", "value", "such", "that", "sum",
    "for", "all", "positive", "integers", "which", "are", "divisible", "by", "when", "number", "smallest", "possible",
    "real", "polynomial", "circle", "radius", "point", "line", "segment", "area", "equals",
]  # fmt: skip
DATA_SET = "dapo.parquet"
SIZE = "dapo.json"
"""File, beside the data set, of its numbers of rows and of problems."""
CACHE = "cache"
ROWS_A_WRITE = 50_000
SAMPLE_EVERY_S = 0.1


def problems(distinct: int, rng: Random) -> list[dict[str, Any]]:
    """Return `distinct` rows with made-up problems of 20 to 120 words, most of them different."""
    rows = []
    for number in range(distinct):
        words = [rng.choice(WORDS) if rng.random() < 0.8 else f"${rng.randint(1, 999)}$" for _ in range(20)]
        words += rng.choices(WORDS, k=rng.randint(0, 100))
        content = f"{HEAD}{' '.join(words)} ({number})?{TAIL}"
        rows.append(
            {
                "data_source": "math_dapo",
                "prompt": [{"content": content, "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": str(rng.randint(0, 9999)), "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": f"{rng.getrandbits(128):032x}"},
            }
        )
    return rows


def write_data_set(path: Path, rows: int, distinct: int) -> None:
    """Write the parquet file: every problem as often as the next, in passes of shuffled order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = Random(17)
    table = pa.Table.from_pylist(problems(distinct, rng))
    places: list[int] = []
    with pq.ParquetWriter(path, table.schema) as writer:
        for start in range(0, rows, ROWS_A_WRITE):
            size = min(ROWS_A_WRITE, rows - start)
            while len(places) < size:
                places += rng.sample(range(distinct), distinct)
            writer.write_table(table.take(pa.array(places[:size])))
            del places[:size]


def made_data_set(directory: Path, rows: int, distinct: int) -> Path:
    """Return the data set in the directory, written unless one of the same size is there whole."""
    data_set = directory / DATA_SET
    size = directory / SIZE
    wanted = json.dumps([rows, distinct])
    if not (data_set.is_file() and size.is_file() and size.read_text() == wanted):
        size.unlink(missing_ok=True)
        write_data_set(data_set, rows, distinct)
        size.write_text(wanted)
    return data_set


def write_tokenizer(directory: Path, data_set: Path) -> None:
    """Train a byte-level BPE of 8,000 tokens on the first problems and save it as a model's tokenizer."""
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=["<|endoftext|>"], show_progress=False)
    batch = next(pq.ParquetFile(data_set).iter_batches(batch_size=2000, columns=["prompt"]))
    tokenizer.train_from_iterator((row[0]["content"] for row in batch.column("prompt").to_pylist()), trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(directory)


def start(directory: Path, model: str) -> None:
    """Do what a run does before Ray starts, and print its stages as JSON."""
    began = time.monotonic()
    from openrlhf_tir.cli.checks.data import check_data
    from openrlhf_tir.cluster.jobs.inputs import TaskPrompts, load_inputs
    from openrlhf_tir.cluster.jobs.main import train  # noqa: F401  what a driver has in memory
    from openrlhf_tir.config.settings import load
    from openrlhf_tir.pipeline.checkpoints.lineage import checkpoints_of

    flags = {
        "run_dir": str(directory / "run"),
        "data.prompt_dataset": str(directory / DATA_SET),
        "data.input_template": "zerotir",
        "actor.model_name_or_path": model,
        "train.num_episodes": 1,
    }
    cfg = load(None, flags)
    stages: dict[str, Any] = {}

    def note(stage: str) -> None:
        nonlocal began
        stages[f"{stage}_s"] = round(time.monotonic() - began, 1)
        began = time.monotonic()

    note("imports")
    for fact in check_data(cfg, training=True):
        print(f"check: {fact}", flush=True)
    note("check")
    inputs = load_inputs(cfg)
    note("prompts")
    checkpoints_of(cfg, inputs.prompts.tasks)
    note("digests")
    prompts = TaskPrompts(inputs.prompts, cfg)
    drawn = [prompts.next() for _ in range(1024)]
    texts = {prompts.task(key[1]).prompt for key in drawn if key}
    note("order")
    print(json.dumps({"prompts": len(inputs.prompts), "distinct_of_1024_drawn": len(texts), "stages": stages}))


def measured(directory: Path, model: str) -> dict[str, Any]:
    """Run one start in a process of its own and return its wall time, CPU time and the peak of its PSS."""
    command = [sys.executable, "-m", "benchmarks.data", "--start", "--directory", str(directory), "--model", model]
    began = time.monotonic()
    peak = 0
    cpu_s = 0.0
    environment = {**os.environ, "XDG_CACHE_HOME": str(directory / CACHE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        process = psutil.Process(child.pid)
        while child.poll() is None:
            for pss, seconds in _samples(process):
                peak = max(peak, pss)
                cpu_s = seconds
            time.sleep(SAMPLE_EVERY_S)
        assert child.stdout is not None
        printed = child.stdout.read()
    wall_s = time.monotonic() - began
    print(printed, end="", flush=True)
    if child.returncode:
        raise SystemExit(f"The start ended with code {child.returncode}.")
    found = json.loads(printed.splitlines()[-1])
    return {"wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1), "peak_pss_gib": round(peak / 2**30, 3), **found}


def _samples(process: psutil.Process) -> Iterator[tuple[int, float]]:
    """Yield (PSS in bytes, CPU seconds) once, or nothing when the process has just ended."""
    try:
        times = process.cpu_times()
        yield process.memory_full_info().pss, times.user + times.system
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_790_000)
    parser.add_argument("--distinct", type=int, default=17_398)
    parser.add_argument("--model", help="directory of a model whose tokenizer is used")
    parser.add_argument("--directory", type=Path, help="where the files go and stay; default: a temporary directory")
    parser.add_argument("--start", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        start(args.directory, args.model)
        return
    with nullcontext(args.directory) if args.directory else tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        directory.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(directory / CACHE, ignore_errors=True)  # of an earlier call: the first start finds none
        data_set = made_data_set(directory, args.rows, args.distinct)
        if not args.model:
            write_tokenizer(directory / "tokenizer", data_set)
        model = args.model or str(directory / "tokenizer")
        starts = {name: measured(directory, model) for name in ("first", "later")}
    print(json.dumps({"rows": args.rows, "distinct": args.distinct, **starts}))


if __name__ == "__main__":
    main()
