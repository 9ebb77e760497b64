"""The command line: `openrlhf-tir COMMAND ...`. Parses everything before anything heavy is imported.

Errors that we raise on purpose are TirErrors: one line (fact, value, remedy) and the exit code of exit_codes.py. A
traceback means a bug."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

from ..cluster.collector import collect_rarely
from ..config.flags import Parser, check_unknown
from ..config.problems import as_dict
from ..errors import ConfigError, InfraError, TirError
from .exit_codes import NO, code_of

COMMANDS = {
    "quickstart": "a tiny model learns to use Python by RL, in minutes",
    "train": "train a policy: recipe and flags in, model out",
    "import-openrlhf": "a script or command line of OpenRLHF -> a recipe",
    "import-verl": "a script or Hydra command line of verl -> a recipe",
    "import-trl": "a script with TRL's GRPOTrainer -> a recipe",
    "recipes": "list the recipes that ship with the package",
    "rewards": "list the rewards and filters that have a name",
    "envs": "list the environments that a run can start",
    "show-config": "print what a recipe and flags add up to",
    "data": "check, convert, decontaminate or select problems",
    "check-env": "check that an environment server keeps the protocol",
    "size": "what GPUs and hosts would hold, and whether it fits",
    "simulate": "predict throughput and staleness, or plan a cluster",
    "watch": "a live page of a run in the browser",
    "play": "print an episode, or what a run trained or dropped",
    "control": "change a run that is running",
    "audit": "what became of every prompt of a run",
    "report": "write a run's report and curves again",
    "compare": "curves of several runs, and the best checkpoint",
    "export": "the model of a checkpoint, without GPUs",
    "eval": "accuracy and tool use of a model, on held-out rows",
    "serve": "the OpenAI API of a model, until it is stopped",
    "distill": "a run's correct trajectories -> rows for sft",
    "sft": "fine-tune a model on messages, texts or trajectories",
    "reproduce": "train a published method in miniature",
    "model": "make a language model that ships inside a package",
    "toy-model": "make the tiny base model of the quickstart",
}
"""One module of openrlhf_tir.cli each, with `add_arguments(parser)` and `run(args) -> exit code`."""


TOGETHER = {
    ("recipes", "rewards", "envs"): "list what has a name and ships with the package",
    ("model", "toy-model"): "make a small base model",
}
"""Commands that share a line of the top help, which is one screen, and what it says of them."""


class _TopParser(Parser):
    """The parser of the command line itself, whose help has a line for each command."""

    def format_help(self) -> str:
        """Return the name and summary of every command, on one screen."""
        shared = {names[0]: (names, text) for names, text in TOGETHER.items()}
        hidden = {name for names in TOGETHER for name in names[1:]}
        rows = [shared.get(name, ((name,), text)) for name, text in COMMANDS.items() if name not in hidden]
        width = max(len(", ".join(names)) for names, _ in rows)
        lines = [f"  {', '.join(names):{width}}  {text}" for names, text in rows]
        head = [f"usage: {self.prog} COMMAND ...", "", self.description or "", ""]
        foot = ["", f"`{self.prog} COMMAND --help` says more, `--version` which version it is."]
        return "\n".join([*head, *lines, *foot]) + "\n"


def _module(command: str) -> ModuleType:
    return import_module(f".{command.replace('-', '_')}", __package__)


def build_parser(only: str) -> Parser:
    """Return the parser of the command `only`, or if there is none of that name, of all, without their options."""
    parser = _TopParser(
        prog="openrlhf-tir", description="Asynchronous pipeline RL for tool-using language models.", allow_abbrev=False
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"openrlhf-tir {version('openrlhf-tir')}",
        help="print the version, and exit",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, required=True)
    for name, summary in ({only: COMMANDS[only]} if only in COMMANDS else COMMANDS).items():
        sub = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
        )
        if name == only:
            _module(name).add_arguments(sub)
    return parser


def keep_compiled() -> None:
    """Let this process and all that it starts write the byte code that they compile.

    Many container images set PYTHONDONTWRITEBYTECODE. Every process of a run would then compile torch, vLLM and the
    rest anew, 10 s each; where the files cannot be written Python goes on without them.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        sys.dont_write_bytecode = False


def _not_installed(missing: ModuleNotFoundError) -> ConfigError:
    """Return the error for a package that this installation does not have.

    Raises:
        ModuleNotFoundError: The package is there and lacks the module: a bug of ours, or another version of a library.
    """
    package = (missing.name or "").partition(".")[0]
    if not package or find_spec(package) is not None:
        raise missing
    return ConfigError(
        f"{package} is not installed. The base install has what plans a run; reading rows, rendering prompts and"
        " training need more. Install it with pip, or everything with train_scripts/setup_env.sh.",
        code="not_installed",
    )


AWAY = (errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EREMOTEIO, errno.EHOSTDOWN, errno.ENODEV, errno.ENXIO)
"""Errors of a disk that is broken, or whose file server or FUSE process is gone."""


def _refused(error: OSError) -> TirError:
    """Return the error for a file or an output that a disk refuses.

    Raises:
        OSError: It is of another kind: a bug of ours, unless the command has explained it.
    """
    if error.errno in AWAY and (error.filename is not None or error.errno == errno.ESTALE):
        return InfraError(
            f"{error.filename or 'A file'} cannot be read or written: {error.strerror}. Its disk is away: mount it"
            " again, and repeat the command.",
            code="path",
        )
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full and (error.errno not in (errno.EACCES, errno.EROFS, errno.EISDIR) or error.filename is None):
        raise error
    if error.filename is None:
        _discard_output()
    return (InfraError if full else ConfigError)(
        f"{error.filename or 'The output'} cannot be read or written: {error.strerror}. Make room there, ask its owner,"
        " or choose another place, and repeat the command.",
        code="path",
    )


def _discard_output() -> None:
    """Write the rest of the output to nowhere: Python would flush it when it ends, and print that this failed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explained(error: TirError | ModuleNotFoundError | OSError) -> TirError:
    """Return what a command that failed prints. Raises the error itself if it is a bug of ours."""
    if isinstance(error, TirError):
        return error
    return _not_installed(error) if isinstance(error, ModuleNotFoundError) else _refused(error)


def open_standard_streams() -> None:
    """Replace standard streams that this process was started without (`>&-`) by /dev/null.

    The next file that is opened would otherwise have the number of the missing one, and get what libraries print.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(null, True)
    os.close(null)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Ctrl-C is raised."""
    argv = list(sys.argv[1:] if argv is None else argv)
    keep_compiled()
    collect_rarely()
    open_standard_streams()
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
        code = _module(args.command).run(args)
        sys.stdout.flush()  # here, where a reader that has left is expected
        return code
    except BrokenPipeError:
        _discard_output()
        return NO
    except (TirError, ModuleNotFoundError, OSError) as e:
        error = _explained(e)
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        if "--json" in argv:  # in place of the result, for a program that reads it
            print(json.dumps(as_dict(error)))
        return code_of(error)
