"""Programs: the sources of `inside/` as code for a sandbox. `bundle` makes modules of them: no files there."""

from __future__ import annotations

import base64
import functools
import marshal
import zlib
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent / "inside"
_LOAD = """
def _modules(programs):
    import marshal, sys, zlib, base64
    found = {}
    for name, code in marshal.loads(zlib.decompress(base64.b64decode(programs))).items():
        module = found[name] = type(sys)(name)
        exec(code, module.__dict__)
    return found
"""


@functools.cache
def source(name: str) -> str:
    """The program's text, for a Python that is not ours."""
    return (_HERE / f"{name}.py").read_text()


@functools.cache
def bundle(*names: str) -> str:
    """Python source after which `programs[name]` are the modules."""
    compiled = {name: compile(source(name), f"<{name}>", "exec", dont_inherit=True, optimize=2) for name in names}
    return f"{_LOAD}programs = _modules({packed(compiled)})\n"


def packed(value: Any) -> str:
    """A literal of `value` for `marshal`, compressed and without escapes: long literals of bytes are slow to read."""
    return repr(base64.b64encode(zlib.compress(marshal.dumps(value), 1)))


def unpacking(value: Any) -> str:
    """An expression that is `value` in the sandbox; `bundle` comes before it."""
    return (
        f"__import__('marshal').loads(__import__('zlib').decompress(__import__('base64').b64decode({packed(value)})))"
    )
