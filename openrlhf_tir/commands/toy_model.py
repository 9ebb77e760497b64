"""toy-model: nothing -> a tiny Qwen2 with a character tokenizer, cold-started by supervised fine-tuning, and its problems."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/toy-model"), metavar="DIR", help="where model and data go [runs/toy-model]")
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of weights, traces and order [42]")


def run(args: argparse.Namespace) -> int:
    from ..cluster.main import toy_model

    toy_model(out=args.out, seed=args.seed)
    return 0
