"""The command line: `openrlhf-tir COMMAND ...`. Parses everything before anything heavy is imported.

Errors that we raise on purpose are TirErrors: one line (fact, value, remedy) and the exit code of exit_codes.py. A
traceback means a bug."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from .commands.exit_codes import INTERRUPTED, NO, code_of
from .config.flags import Parser, check_unknown
from .errors import TirError

COMMANDS = {
    "quickstart": "make the tiny base model, then watch it learn to use Python by RL",
    "train": "train a policy: recipe and flags in, model, report and checkpoints out",
    "import-openrlhf": "a script or command line of OpenRLHF -> a recipe that does what it did",
    "import-verl": "a script or Hydra command line of verl -> a recipe that does what it did",
    "import-trl": "a Python script with TRL's GRPOTrainer -> a recipe and a file with its functions",
    "eval": "accuracy and tool use of a model on held-out problems",
    "serve": "the OpenAI API of a model on the rollout engines, until it is stopped",
    "sft": "fine-tune a model on messages, texts or kept trajectories, before RL or without it",
    "distill": "a run's kept trajectories -> rows for sft: the correct ones, each once",
    "reproduce": (
        "train a published method in miniature, every arm of its comparison, and say whether its effect is seen"
    ),
    "data": "check, convert, decontaminate or select problems before a run",
    "play": "print one episode, or what a step of a run trained or dropped, the trained tokens coloured",
    "recipes": "list the recipes that ship with the package",
    "rewards": "list the rewards and filters that have a name",
    "envs": "list the environments that a run can start",
    "show-config": "print the configuration that a recipe and flags add up to",
    "check-env": "check that an environment server keeps the protocol",
    "simulate": (
        "predict throughput, idle shares and staleness of a configuration on a virtual clock, or plan a cluster"
    ),
    "size": "what every GPU, host and disk would hold of a configuration, and whether it fits",
    "control": "change a run that is running: number of rollout actors, servers of environments",
    "audit": "what became of every prompt of a run: trained once, filtered, failed",
    "watch": "a live page of a run in the browser: progress, what waits, curves, timeline, samples",
    "compare": "curves and a table of several runs, repetitions as a band, and the best checkpoint by a metric",
    "report": "write report.html and the curves of a run's directory again",
    "model": "make a language model that ships inside a package: bf16 safetensors, tokenizer, chat template",
    "toy-model": "make the tiny base model of the quickstart",
}
"""One module of openrlhf_tir.commands each, with `add_arguments(parser)` and `run(args) -> exit code`."""


def _module(command: str) -> ModuleType:
    return import_module(f".commands.{command.replace('-', '_')}", __package__)


def build_parser(only: str | None = None) -> Parser:
    """The parser; `only` builds the options of that command alone, which keeps `--help` fast."""
    parser = Parser(
        prog="openrlhf-tir", description="Asynchronous pipeline RL for tool-using language models.", allow_abbrev=False
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"openrlhf-tir {version('openrlhf-tir')}",
        help="print the version, and exit",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, required=True)
    for name, summary in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
        )
        if only in (None, name):
            _module(name).add_arguments(sub)
    return parser


def keep_compiled() -> None:
    """Let this process and all that it starts write the byte code that they compile.

    Many container images set PYTHONDONTWRITEBYTECODE. Every process of a run would then compile torch, vLLM and the
    rest anew, 10 s each; where the files cannot be written Python goes on without them.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        sys.dont_write_bytecode = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, one of exit_codes.py."""
    argv = list(sys.argv[1:] if argv is None else argv)
    keep_compiled()
    if argv and argv[0] == "help":
        argv = [*argv[1:2], "--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without UTF-8 shows escapes instead of raising
            stream.reconfigure(errors="backslashreplace")
    try:
        args, extra = build_parser(argv[0] if argv and argv[0] in COMMANDS else "").parse_known_args(argv)
        if hasattr(args, "unknown"):  # a command with configuration flags tells these with its other mistakes
            args.unknown = extra
        else:
            check_unknown(extra, args.parser)
        return _module(args.command).run(args)
    except TirError as e:
        print(f"{type(e).__name__}: {e}", file=sys.stderr)
        return code_of(e)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return NO


if __name__ == "__main__":
    sys.exit(main())
