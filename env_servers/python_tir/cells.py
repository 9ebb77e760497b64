"""Cells: what /run_jupyter has inside a session's interpreter, so that a cell reads as one of a Jupyter notebook does.

    put(files)       base64 -> files in the working directory
    run(source)      in `__main__`; a last expression's value, what display() is given and open matplotlib figures are
                     displayed, an exception is an error with its traceback as lines; top-level await works; `%` and `!`
                     commands are no Python
    tell(mark)       prints mark + JSON {display, error} of the last run
    fetch(names, most, mark)   prints mark + JSON {files: {name: base64}, left_out: {name: bytes}} of the regular files
                     that exist; `most` bytes in all

Sent as text and never imported by the server. Its word is the snippet's word: who replaces it fools only himself.
"""

import ast
import base64
import builtins
import io
import json
import linecache
import os
import stat
import sys
import traceback

RICH = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
}
MAX_CHARS = 4 << 20
"""Characters of everything that one cell displays; what comes after is only named."""
COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import
_main = sys.modules["__main__"].__dict__
_shown: list[dict[str, str]] = []
_errors: list[dict[str, object]] = []
_count = 0


def put(files):
    for name, content in files.items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as f:
            f.write(base64.b64decode(content))


def run(source):
    global _count
    _count += 1
    del _shown[:], _errors[:]
    name = f"<cell {_count}>"
    linecache.cache[name] = len(source), None, (source + "\n").splitlines(True), name
    vars(builtins)["display"] = display
    try:
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        last = (
            tree.body.pop()
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";")
            else None
        )
        _execute(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True))
        if last is not None:
            value = _execute(
                compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            )
            if value is not None:
                _main["_"] = value
                display(value)
    except BaseException as e:
        _raised(e)
    _figures()


def _raised(e):
    try:
        text = str(e)
    except Exception:
        text = f"<{type(e).__name__} that cannot be printed>"
    _errors.append(
        {
            "ename": type(e).__name__,
            "evalue": text,
            "traceback": traceback.format_exception(type(e), e, _below(e.__traceback__)),
        }
    )


def _execute(code):
    result = eval(code, _main)
    if not code.co_flags & COROUTINE:
        return result
    import asyncio

    return asyncio.run(result)


def _below(trace):
    """The traceback without our own frames."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def display(*values, **ignored):
    for value in values:
        bundle = {"text/plain": repr(value)}
        for kind, method in RICH.items():
            if not isinstance(value, type) and (make := getattr(value, method, None)) is not None:
                try:
                    made = make()
                except Exception:
                    continue
                if isinstance(made, bytes):
                    made = base64.b64encode(made).decode()
                if isinstance(made, str):
                    bundle[kind] = made
        _show(bundle)


def _show(bundle):
    size = sum(map(len, bundle.values()))
    room = MAX_CHARS - sum(len(text) for shown in _shown for text in shown.values())
    _shown.append(
        bundle
        if size <= room
        else {"text/plain": f"[{size} characters were not displayed: more than {MAX_CHARS} in this cell]"[:MAX_CHARS]}
    )


def _figures():
    """Those that the cell has left open, as an inline backend shows them."""
    plot = sys.modules.get("matplotlib.pyplot")
    if not plot:
        return
    try:
        for number in plot.get_fignums():
            figure = plot.figure(number)
            png = io.BytesIO()
            figure.savefig(png, format="png", bbox_inches="tight")
            _show({"text/plain": repr(figure), "image/png": base64.b64encode(png.getvalue()).decode()})
        plot.close("all")
    except Exception as e:
        _raised(e)


def tell(mark):
    _say(mark, {"display": _shown, "error": _errors})


def fetch(names, most, mark):
    found = {}
    left_out = {}
    for name in names:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
            with open(fd, "rb") as f:
                facts = os.fstat(fd)
                if stat.S_ISREG(facts.st_mode) and facts.st_size > most:
                    left_out[name] = facts.st_size
                elif stat.S_ISREG(facts.st_mode):
                    content = f.read(most)
                    most -= len(content)
                    found[name] = base64.b64encode(content).decode()
        except OSError:
            pass
    _say(mark, {"files": found, "left_out": left_out})


def _say(mark, value):
    sys.stdout.flush()
    data = f"\n{mark}{json.dumps(value, ensure_ascii=False)}\n".encode("utf-8", "replace")
    while data:
        data = data[os.write(1, data) :]
