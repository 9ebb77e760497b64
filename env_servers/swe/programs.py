"""Ship the sources of `inside/` as code into a sandbox, where `bundle` turns them into modules without files."""

from __future__ import annotations

import base64
import functools
import marshal
import zlib
from pathlib import Path
from typing import Any

from env_servers.python_tir.isolation.job import compiled

_HERE = Path(__file__).parent / "inside"
_LOAD = """
def _modules(programs):
    import marshal, sys, zlib, base64
    modules = {}
    for name, code in marshal.loads(zlib.decompress(base64.b64decode(programs))).items():
        module = modules[name] = type(sys)(name)
        exec(code, module.__dict__)
    return modules
"""


@functools.cache
def source(name: str) -> str:
    """Return a program's text, for a Python of another version."""
    return (_HERE / f"{name}.py").read_text()


@functools.cache
def bundle(*names: str) -> str:
    """Return Python source that makes the modules available as `programs[name]`."""
    programs = {name: compiled(_HERE / f"{name}.py") for name in names}
    return f"{_LOAD}programs = _modules({packed(programs)})\n"


def packed(value: Any) -> str:
    """Return a literal of a marshalled and compressed value, without escapes: long literals of bytes are slow to
    parse."""
    return repr(base64.b64encode(zlib.compress(marshal.dumps(value), 1)))


def unpacking(value: Any) -> str:
    """Return an expression that evaluates to `value` in the sandbox. The source of `bundle` must come before it."""
    return (
        f"__import__('marshal').loads(__import__('zlib').decompress(__import__('base64').b64decode({packed(value)})))"
    )
