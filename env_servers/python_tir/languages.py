"""Languages that /run_code runs besides Python, if their compiler or interpreter is installed and works in the sandbox.

    code, files -> [compile -> the program's bytes ->] run -> Results

Compiling and running are two calls, each in a fresh directory with the request's files, under the same isolation and
with its own limits. Nothing that the compiler leaves behind reaches the run, processes included, except the program.
The commands are SandboxFusion's (runners/major.py). A request's memory limit applies to the run; compiling may use what
the server allows.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

from . import go_cache
from .isolation.job import FETCH_BYTES
from .limits import Limits
from .sandbox import Execution, Program, Sandbox, SandboxError, Snippet

SEARCH_PATH = f"{os.path.dirname(os.path.realpath(sys.executable))}:{go_cache.SEARCH_PATH}"
"""Directories in which compilers and interpreters are looked for."""
TRIAL_S = 60.0
"""Seconds of the small program that tries a language when the server starts."""
TRIED = b"42\n"
"""Output of that program."""
CPP_LIBRARIES = "crypto", "ssl", "pthread"
"""Libraries that are linked as the original links them, if they are installed."""
GO_NOT_READY = (
    "{path} is installed. For go to be served, run `python -m env_servers.python_tir.go_cache` once:"
    " it compiles go's library (a minute or two)."
)
_TOO_LARGE = f"The compiled program is not there, or has more than {FETCH_BYTES >> 20} MiB.\n".encode()


@dataclass(frozen=True, slots=True)
class Tool:
    """The compiler or interpreter of a language, as the sandbox finds it."""

    path: str
    options: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Language:
    """How one language is compiled and run.

    Attributes:
        tool: The command that must be installed.
        suffix: Suffix of a source file.
        trial: Source of a program that prints TRIED.
        run: Returns the command that runs a script, or a compiled program, from its tool, file name and limits.
        compile: Returns the command that compiles, from the tool, the names of the source and of the program; None if
            the language is interpreted.
        reserves: As `Limits.reserves`, for the program and for its compiler.
    """

    tool: str
    suffix: str
    trial: str
    run: Callable[[Tool, str, Limits], Sequence[str]]
    compile: Callable[[Tool, str, str], Sequence[str]] | None = None
    reserves: bool = False


class Results(NamedTuple):
    """How compiling and running ended.

    Attributes:
        compiled: None if the language is interpreted.
        ran: None if the code did not compile; `compiled` has the reason.
        files: The requested files that exist.
    """

    compiled: Execution | None
    ran: Execution | None
    files: Mapping[str, bytes]


def _script(tool: Tool, name: str, limits: Limits) -> Sequence[str]:
    return [tool.path, name]


def _node(tool: Tool, name: str, limits: Limits) -> Sequence[str]:
    # V8 sizes its heap by the memory of the machine. With a limit of three quarters of the sandbox's memory it collects
    # garbage before it is killed.
    heap_mib = max(16, limits.memory_bytes * 3 // 4 >> 20)
    # Without the first setting OpenSSL would look for a configuration file of the host.
    return ["/usr/bin/env", "OPENSSL_CONF=/dev/null", tool.path, f"--max-old-space-size={heap_mib}", name]


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
    """The languages that one sandbox runs."""

    def __init__(self, sandbox: Sandbox, tools: Mapping[str, Tool]) -> None:
        """Create the collection.

        Args:
            sandbox: Runs compilers and programs.
            tools: The tool of each language, by the language's name.
        """
        self._sandbox = sandbox
        self._tools = dict(tools)

    @property
    def names(self) -> list[str]:
        """Names of the languages, sorted."""
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
        """Compile code if its language is compiled, run it, and return how both ended.

        Args:
            name: One of `names`.
            code: The source.
            stdin: Standard input of the run.
            files: Files of both calls, by path below the working directory.
            fetch: Paths that are read after the run, or after a failed compilation.
            compile_s: Wall-clock seconds of the compiler.
            run_s: Wall-clock seconds of the run.
            memory_bytes: Memory of the run; None: the sandbox's limit.
            keep_bytes: Bytes kept of each output stream.

        Raises:
            KeyError: The language is not among `names`.
            SandboxError: The sandbox failed.
        """
        tool = self._tools[name]
        language = LANGUAGES[name]
        used_names = {PurePosixPath(path).parts[0] for path in (*files, *fetch)}
        source_name = _unused_name(language.suffix, used_names)
        program = Program(source_name, code.encode("utf-8", "surrogatepass"), ())
        compiled = None
        if language.compile is not None:
            binary_name = _unused_name("", used_names)
            compiler = replace(program, argv=language.compile(tool, source_name, binary_name))
            limits = replace(self._sandbox.limits.for_call(compile_s, None, keep_bytes), reserves=language.reserves)
            compiled = await self._sandbox.execute(
                Snippet("", files=files, fetch=[binary_name, *fetch], program=compiler), limits
            )
            fetched = dict(compiled.files)
            binary = fetched.pop(binary_name, None)
            if compiled.return_code == 0 and binary is None:
                compiled = replace(compiled, return_code=1, stderr=compiled.stderr + _TOO_LARGE)
            if compiled.return_code != 0 or binary is None:
                return Results(compiled, None, fetched)
            program = Program(binary_name, binary, ())
        limits = replace(self._sandbox.limits.for_call(run_s, memory_bytes, keep_bytes), reserves=language.reserves)
        program = replace(program, argv=language.run(tool, program.name, limits))
        ran = await self._sandbox.execute(Snippet("", stdin, files, fetch, program), limits)
        return Results(compiled, ran, ran.files)


def _unused_name(suffix: str, used_names: Iterable[str]) -> str:
    """Return the file name `main` with a suffix, and with a number if `used_names` has it already."""
    number = 1
    name = f"main{suffix}"
    while name in used_names:
        number += 1
        name = f"main{number}{suffix}"
    return name


def compiler_directories() -> list[str]:
    """Return the directories of the host that the sandbox must show to compilers."""
    go = shutil.which("go", path=SEARCH_PATH)
    return [str(go_cache.directory())] if go and go_cache.is_ready(go) else []


async def find_languages(sandbox: Sandbox, search_path: str = SEARCH_PATH) -> Languages:
    """Return the languages whose tool is installed and runs its trial program in the sandbox.

    A tool that is installed and does not work in the sandbox is named on stderr.
    """
    tools: dict[str, Tool] = {}
    for name, language in LANGUAGES.items():
        tool = _installed(language, search_path)
        if tool is not None:
            tools[name] = tool
    candidates = Languages(sandbox, tools)
    failures = await asyncio.gather(*[_failure(candidates, name) for name in tools])
    working: dict[str, Tool] = {}
    for (name, tool), failure in zip(tools.items(), failures, strict=True):
        if failure is None:
            working[name] = tool
        else:
            print(
                f"WARNING: {tool.path} is installed, but does not work in the sandbox,"
                f" so {name} is not served: {failure}",
                file=sys.stderr,
            )
    return Languages(sandbox, working)


def _installed(language: Language, search_path: str) -> Tool | None:
    """Return the tool of a language; None if it is not installed, or go's library is not compiled yet."""
    path = shutil.which(language.tool, path=search_path)
    if path is None:
        return None
    if language.tool == "go":
        if not go_cache.is_ready(path):
            print(GO_NOT_READY.format(path=path), file=sys.stderr)
            return None
        return Tool(path, [f"GOCACHE={go_cache.directory()}"])
    if language.tool != "g++":
        return Tool(path)
    # g++ answers with the bare name of a library that is not installed
    libraries = [name for name in CPP_LIBRARIES if os.path.isabs(_output_of(path, f"-print-file-name=lib{name}.so"))]
    return Tool(path, [f"-l{name}" for name in libraries])


def _output_of(*command: str) -> str:
    """Return the standard output of a command, "" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRIAL_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


async def _failure(languages: Languages, name: str) -> str | None:
    """Return why the trial program of a language failed; None if it ran."""
    try:
        compiled, ran, _ = await languages.execute(
            name, LANGUAGES[name].trial, files={}, compile_s=TRIAL_S, run_s=TRIAL_S, keep_bytes=4096
        )
    except SandboxError as e:
        return str(e)
    if ran is not None and ran.return_code == 0 and ran.stdout == TRIED:
        return None
    last = ran or compiled
    if last is None:
        return "exit status None"
    output = (last.stderr or last.stdout)[-300:].decode("utf-8", "replace").strip()
    if output:
        return output
    return f"killed ({last.killed})" if last.killed else f"exit status {last.return_code}"
