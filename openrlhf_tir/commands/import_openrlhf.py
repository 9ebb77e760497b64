"""import-openrlhf: a bash script or a command line of OpenRLHF -> a recipe that does what it did."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from ..config.integrations.bash_script import Command, Script, read_script
from ..config.integrations.openrlhf_commands import RECIPES, Call, calls_of
from ..config.integrations.openrlhf_import import Imported, Source, import_train_ppo
from ..config.integrations.openrlhf_sft import import_train_sft
from ..config.integrations.recipe_draft import Draft, toml_of
from ..config.integrations.rehearsal import rehearse
from ..errors import ConfigError, TirError
from ..exit_codes import DONE, NO

EXAMPLES = """examples
  openrlhf-tir import-openrlhf train_grpo.sh --out grpo.toml
      the recipe of a script; what differs, and OpenRLHF's defaults, are comments in it and on the screen
  openrlhf-tir import-openrlhf -- --actor.model_name_or_path MODEL --actor.adam.lr 5e-7 ...
      the same of train_ppo_ray's flags, without a script
  openrlhf-tir import-openrlhf --rehearse train_grpo.sh --run --actor.model_name_or_path TOY --data.prompt_dataset ROWS
      two short batches of it on this machine, without GPUs: does everything work together?
  openrlhf-tir import-openrlhf train_grpo.sh --run --run-dir runs/mine
      make the recipe and start it: what follows --run are flags of `openrlhf-tir train`
Names of OpenRLHF 0.11, 0.10 and of 0.9 and older are read. The script is not run: variables, arrays, here-documents,
conditions and loops are read as bash would take them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES.replace("%", "%%")
    parser.usage = (
        "%(prog)s [--out FILE] [--number N] SCRIPT.sh [ARGUMENT...] [--run [FLAGS...]]\n"
        "       %(prog)s [--out FILE] [--program NAME] -- FLAGS..."
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SCRIPT",
        help="bash script that calls OpenRLHF, with the arguments it takes; or, behind --, the flags themselves",
    )
    parser.add_argument("--out", metavar="FILE", help="write the recipe there instead of printing it")
    parser.add_argument(
        "--number", type=int, default=1, metavar="N", help="which of the script's training commands [1]"
    )
    parser.add_argument(
        "--program",
        choices=RECIPES,
        default="train_ppo_ray",
        help="whose flags stand behind -- [train_ppo_ray]",
    )
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="cut the recipe down to two short batches on a machine without GPUs: the method stays, sizes change",
    )
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        help="start the recipe with `openrlhf-tir train` or `sft`; what follows are flags of that command",
    )


def run(args: argparse.Namespace) -> int:
    words = list(args.words)
    if not words:
        raise ConfigError(
            "Nothing to import. Give a script, openrlhf-tir import-openrlhf SCRIPT.sh, or flags:"
            " openrlhf-tir import-openrlhf -- FLAGS..."
        )
    calls = calls_of([Command(tuple(words), 0)])
    if calls or words[0].startswith("--"):
        script, source = Script(), Source("openrlhf", [Path.cwd()])
        calls = calls or [Call(args.program, (args.program,), tuple(words), 0)]
    else:
        path = Path(words[0])
        script, source = read_script(path, arguments=words[1:]), Source(path.name, _directories(path))
        calls = calls_of(script.commands)
    for note in script.notes:
        _say(note)
    trains = [call for call in calls if call.program in RECIPES]
    for call in calls:
        if call not in trains:
            _say(f"{_place(call)}{call.program}: {call.sentence}")
    if not trains:
        if not calls:
            _say(f"{source.name} starts no program of OpenRLHF: it remains as it is, bash {' '.join(words)}.")
        return NO
    if not 1 <= args.number <= len(trains):
        raise ConfigError(
            f"--number {args.number}: the script has {len(trains)} training command(s)."
            f" Use --number 1{f' to {len(trains)}' if len(trains) > 1 else ''}."
        )
    chosen = trains[args.number - 1]
    for i, call in enumerate(trains, 1):
        if call is not chosen:
            _say(f"{_place(call)}{call.program} is training command {i} of {len(trains)}: --number {i} imports it")
    imported, text = recipe_of(chosen, source, rehearsal=args.rehearse)
    return _finish(args, chosen, imported, text, source)


def recipe_of(call: Call, source: Source, *, rehearsal: bool = False) -> tuple[Imported, str]:
    """Return the recipe of one command, as settings and as text."""
    cut = rehearse if rehearsal else None
    if call.program == "train_sft":
        imported = import_train_sft(call.flags, source, call.gpus, cut)
    else:
        imported = import_train_ppo(call.flags, source, rows_of, cut)
    draft = imported.draft
    where = f"{source.name}, line {call.line}" if call.line else "a command line"
    head = [
        f"From {where}: OpenRLHF's {call.program}. Made by `openrlhf-tir import-openrlhf`.",
        "",
        f"{imported.summary}.",
    ]
    if draft.differences:
        head += ["", "What differs from the command, or is left out:", *(f"- {text}" for text in draft.differences)]
    if draft.defaults:
        head += [
            "",
            "What the command does not say, and OpenRLHF 0.11.2 does otherwise than this project:",
            *(f"- {text}" for text in draft.defaults),
        ]
    if imported.problems:
        head += ["", "What has to be corrected before it runs:", *(f"- {text}" for text in imported.problems)]
    return imported, toml_of(draft, head)


def rows_of(draft: Draft) -> int | None:
    """Return the number of rows of a recipe's data that lie on this machine; None where some do not, or cannot be
    read: that is said when the recipe is checked."""
    from ..data.bad_rows import BadRows
    from ..data.rows import read_rows

    names = str(draft.settings.get("data.prompt_dataset", "")).split(",")
    if not all(name.strip() and Path(name.strip()).exists() for name in names):
        return None
    split = str(draft.settings.get("data.prompt_split", "train"))
    try:
        return sum(1 for name in names for _ in read_rows(name.strip(), split, BadRows("skip")))
    except TirError:
        return None


def _finish(args: argparse.Namespace, call: Call, imported: Imported, text: str, source: Source) -> int:
    """Say what differs, give the recipe, and start it where that is wanted."""
    draft = imported.draft
    _say(f"{imported.summary}.")
    for sentence in draft.differences:
        _say(f"differs: {sentence}")
    for sentence in draft.defaults:
        _say(f"OpenRLHF's default: {sentence}")
    for sentence in imported.problems:
        _say(f"correct this: {sentence}")
    out = args.out
    if out is None and args.run is not None:
        out = f"{Path(source.name).stem}.toml"
    if out is None:
        print(text, end="")
        return DONE
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"The recipe cannot be written to {path}: {e.strerror or e}. Choose another --out.") from None
    command = "sft" if call.program == "train_sft" else "train"
    _say(f"written: {path}. Check it: openrlhf-tir {command} --recipe {path} --check-only")
    if args.run is None:
        return DONE
    sys.stdout.flush()
    sys.stderr.flush()
    # The run takes the place of this process: signals and restarts by the launcher find what they would without us.
    words = [sys.executable, "-m", "openrlhf_tir.cli", command, "--recipe", str(path), *args.run]
    os.execv(sys.executable, words)


def _directories(path: Path) -> list[Path]:
    """Return where relative paths of a script may begin: here, where OpenRLHF's scripts are started from, or beside
    it."""
    here = path.absolute().parent
    return [Path.cwd(), here.parent.parent, here]


def _place(call: Call) -> str:
    return f"line {call.line}: " if call.line else ""


def _say(sentence: str) -> None:
    print(f"import: {sentence}", file=sys.stderr)
