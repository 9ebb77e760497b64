"""Languages: what /run_code runs besides Python, where its compiler or interpreter is installed and works inside the
sandbox.

    code, files -> [compile -> the program's bytes ->] run -> Results

Compiling is a call of its own, run is another: each in a fresh directory with the request's files, under the same
isolation, with limits of its own. What compiling leaves behind but the program, processes included, does not reach the
run. The commands are SandboxFusion's (runners/major.py). A request's memory limit is the run's; compiling may take what
the server allows."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from . import go_cache
from .isolation.job import FETCH_BYTES
from .limits import Limits
from .sandbox import Execution, Program, Sandbox, SandboxError, Snippet

PLACES = f"{os.path.dirname(os.path.realpath(sys.executable))}:{go_cache.PLACES}"
TRIAL_S = 60.0
"""One small program at start."""
TRIED = b"42\n"
CPP_LIBRARIES = "crypto", "ssl", "pthread"
"""Linked as the original does, where they are installed."""
GO_NOT_READY = (
    "{path} is installed. For go to be served, run `python -m env_servers.python_tir.go_cache` once:"
    " it compiles go's library (a minute or two)."
)
_TOO_LARGE = f"The compiled program is not there, or has more than {FETCH_BYTES >> 20} MiB.\n".encode()


@dataclass(frozen=True, slots=True)
class Tool:
    """A language's compiler or interpreter, as the sandbox finds it."""

    path: str
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Language:
    tool: str
    """The command that must be installed."""
    suffix: str
    """The suffix of a source file."""
    trial: str
    """Source that prints TRIED."""
    run: Callable[[Tool, str, Limits], Sequence[str]]
    """(tool, name of the script, or of the program that was compiled, limits) -> argv."""
    compile: Callable[[Tool, str, str], Sequence[str]] | None = None
    """(tool, name of the source, name of the program to write) -> argv."""
    reserves: bool = False
    """See `Limits.reserves`; of its compiler, too."""


class Results(NamedTuple):
    """`compiled` None: nothing to compile; `ran` None: it did not compile, and `compiled` says why."""

    compiled: Execution | None
    ran: Execution | None
    files: Mapping[str, bytes]


def _script(tool: Tool, name: str, limits: Limits) -> Sequence[str]:
    return [tool.path, name]


def _node(tool: Tool, name: str, limits: Limits) -> Sequence[str]:
    """V8 sizes its heap by the machine's memory; told of the limit, it collects garbage before it gets there. OpenSSL's
    settings are the host's."""
    return [
        "/usr/bin/env",
        "OPENSSL_CONF=/dev/null",
        tool.path,
        f"--max-old-space-size={max(16, limits.memory_bytes * 3 // 4 >> 20)}",
        name,
    ]


def _program(tool: Tool, name: str, limits: Limits) -> Sequence[str]:
    return [f"./{name}"]


def _go_program(tool: Tool, name: str, limits: Limits) -> Sequence[str]:
    return ["/usr/bin/env", "GOMAXPROCS=4", f"./{name}"]


def _compile_cpp(tool: Tool, source: str, program: str) -> Sequence[str]:
    return [tool.path, "-std=c++17", source, "-o", program, *tool.options]


def _compile_go(tool: Tool, source: str, program: str) -> Sequence[str]:
    settings = (f"{name}={value}" for name, value in go_cache.SETTINGS.items())
    return ["/usr/bin/env", *settings, *tool.options, tool.path, "build", "-o", program, source]


LANGUAGES = {
    "bash": Language("bash", ".sh", "echo $((6 * 7))", _script),
    "cpp": Language(
        "g++", ".cpp", 'extern "C" int puts(const char *);\nint main() { puts("42"); }', _program, _compile_cpp
    ),
    "go": Language(
        "go",
        ".go",
        'package main\nimport "fmt"\nfunc main() { fmt.Println(6 * 7) }',
        _go_program,
        _compile_go,
        reserves=True,
    ),
    "nodejs": Language("node", ".js", "console.log(6 * 7)", _node, reserves=True),
}


class Languages:
    """Those of one sandbox."""

    def __init__(self, sandbox: Sandbox, tools: Mapping[str, Tool]) -> None:
        """`tools` by the language's name."""
        self._sandbox = sandbox
        self._tools = dict(tools)

    @property
    def names(self) -> list[str]:
        return sorted(self._tools)

    async def execute(
        self,
        name: str,
        code: str,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes],
        fetch: Sequence[str] = (),
        compile_s: float,
        run_s: float,
        memory_bytes: int | None = None,
        keep_bytes: int,
    ) -> Results:
        """Raises KeyError for a language that is not among `names`, SandboxError."""
        tool = self._tools[name]
        language = LANGUAGES[name]
        taken = {path.split("/")[0] for path in (*files, *fetch)}
        source = Program(_free("main", language.suffix, taken), code.encode("utf-8", "surrogatepass"), ())
        compiled = None
        if language.compile is not None:
            name = _free("main", "", taken)
            compile_it = replace(source, argv=language.compile(tool, source.name, name))
            limits = replace(self._sandbox.limits.for_call(compile_s, None, keep_bytes), reserves=language.reserves)
            compiled = await self._sandbox.execute(
                Snippet("", files=files, fetch=[name, *fetch], program=compile_it), limits
            )
            left = dict(compiled.files)
            content = left.pop(name, None)
            if compiled.return_code == 0 and content is None:
                compiled = replace(compiled, return_code=1, stderr=compiled.stderr + _TOO_LARGE)
            if compiled.return_code != 0 or content is None:
                return Results(compiled, None, left)
            source = Program(name, content, ())
        limits = replace(self._sandbox.limits.for_call(run_s, memory_bytes, keep_bytes), reserves=language.reserves)
        run_it = replace(source, argv=language.run(tool, source.name, limits))
        ran = await self._sandbox.execute(Snippet("", stdin, files, fetch, run_it), limits)
        return Results(compiled, ran, ran.files)


def _free(stem: str, suffix: str, taken: Iterable[str]) -> str:
    """A file name that is nobody else's."""
    number = 1
    name = stem + suffix
    while name in taken:
        number += 1
        name = f"{stem}{number}{suffix}"
    return name


def shown() -> list[str]:
    """Directories of the host that the sandbox must show to compilers."""
    go = shutil.which("go", path=PLACES)
    return [str(go_cache.directory())] if go and go_cache.is_ready(go) else []


async def found(sandbox: Sandbox, places: str = PLACES) -> Languages:
    """The languages whose tool is installed and runs its trial in the sandbox. One that is installed and does not is
    said on stderr."""
    tools = {name: tool for name, language in LANGUAGES.items() if (tool := _installed(language, places)) is not None}
    all_of_them = Languages(sandbox, tools)
    failures = await asyncio.gather(*[_failure(all_of_them, name) for name in tools])
    for name, failure in zip(tools, failures, strict=True):
        if failure is not None:
            print(
                f"WARNING: {tools[name].path} is installed, but does not work in the sandbox,"
                f" so {name} is not served: {failure}",
                file=sys.stderr,
            )
    return Languages(
        sandbox, {name: tool for (name, tool), failure in zip(tools.items(), failures, strict=True) if failure is None}
    )


def _installed(language: Language, places: str) -> Tool | None:
    path = shutil.which(language.tool, path=places)
    if path is None:
        return None
    if language.tool == "go":
        if not go_cache.is_ready(path):
            print(GO_NOT_READY.format(path=path), file=sys.stderr)
            return None
        return Tool(path, [f"GOCACHE={go_cache.directory()}"])
    if language.tool != "g++":
        return Tool(path)
    libraries = [name for name in CPP_LIBRARIES if os.path.isabs(_asked(path, f"-print-file-name=lib{name}.so"))]
    return Tool(path, [f"-l{name}" for name in libraries])


def _asked(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRIAL_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


async def _failure(languages: Languages, name: str) -> str | None:
    """What went wrong in the trial; None: nothing."""
    try:
        compiled, ran, _ = await languages.execute(
            name, LANGUAGES[name].trial, files={}, compile_s=TRIAL_S, run_s=TRIAL_S, keep_bytes=4096
        )
    except SandboxError as e:
        return str(e)
    last = ran or compiled
    if ran is not None and ran.return_code == 0 and ran.stdout == TRIED:
        return None
    said = (last.stderr or last.stdout)[-300:].decode("utf-8", "replace").strip() if last else ""
    return (
        said or f"killed ({last.killed})"
        if last and last.killed
        else said or f"exit status {last.return_code if last else None}"
    )
