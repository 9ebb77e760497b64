"""The code that /run_jupyter puts into a session's interpreter, so that a cell behaves as one of a Jupyter notebook.

    put(files)       write base64 as files in the working directory
    run(source)      run a cell in `__main__`. The value of a last expression, arguments of display() and open
                     matplotlib figures are displayed; an exception becomes an error with its traceback as lines;
                     top-level await works; `%` and `!` commands are not supported
    tell(mark)       print mark + JSON {display, error} of the last run
    fetch(names, max_bytes, mark)
                     print mark + JSON {files: {name: base64}, left_out: {name: bytes}} of the regular files that
                     exist, `max_bytes` bytes in all

The server sends this file as text and never imports it. A snippet can replace these functions, and then deceives only
itself.
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
"""Method of a displayed value for each media type, as IPython calls it."""
MAX_CHARS = 4 << 20
"""Characters of everything that one cell displays. A value beyond is replaced by a sentence with its size."""
COROUTINE = 0x80  # inspect.CO_COROUTINE, without the import
_main = sys.modules["__main__"].__dict__
_displayed: list[dict[str, str]] = []
_errors: list[dict[str, object]] = []
_count = 0


def put(files):
    """Write the files; their content is base64."""
    for name, content in files.items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as f:
            f.write(base64.b64decode(content))


def run(source):
    """Run a cell. What it displays and raises is kept for `tell`."""
    global _count
    _count += 1
    del _displayed[:], _errors[:]
    name = f"<cell {_count}>"
    linecache.cache[name] = len(source), None, (source + "\n").splitlines(True), name
    vars(builtins)["display"] = display
    try:
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = tree.body.pop()
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
    """Keep an exception of a cell as Jupyter reports it."""
    try:
        text = str(e)
    except BaseException:  # its own text may exit
        text = f"<{type(e).__name__} that cannot be printed>"
    _errors.append(
        {
            "ename": type(e).__name__,
            "evalue": text,
            "traceback": traceback.format_exception(type(e), e, _below(e.__traceback__)),
        }
    )


def _execute(code):
    """Run code in `__main__` and return its value. Code with a top-level await is run to its end."""
    result = eval(code, _main)
    if not code.co_flags & COROUTINE:
        return result
    import asyncio

    return asyncio.run(result)


def _below(trace):
    """Return the traceback without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def display(*values, **ignored):
    """Display values in every form that they offer, as IPython's display does."""
    for value in values:
        bundle = {"text/plain": repr(value)}
        for kind, method in RICH.items():
            if not isinstance(value, type) and (represent := getattr(value, method, None)) is not None:
                try:
                    content = represent()
                except Exception:
                    continue
                if isinstance(content, bytes):
                    content = base64.b64encode(content).decode()
                if isinstance(content, str):
                    bundle[kind] = content
        _show(bundle)


def _show(bundle):
    size = sum(map(len, bundle.values()))
    room = MAX_CHARS - sum(len(text) for displayed in _displayed for text in displayed.values())
    if size > room:
        note = f"[{size} characters were not displayed: more than {MAX_CHARS} in this cell]"
        bundle = {"text/plain": note[:MAX_CHARS]}
    _displayed.append(bundle)


def _figures():
    """Display the figures that the cell has left open, as an inline backend does."""
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
    """Print what the last cell displayed and raised."""
    _print_json(mark, {"display": _displayed, "error": _errors})


def fetch(names, max_bytes, mark):
    """Print the content of files, as far as they fit in `max_bytes` together."""
    files = {}
    left_out = {}
    for name in names:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe without a writer must not block
            with open(fd, "rb") as f:
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode) and status.st_size > max_bytes:
                    left_out[name] = status.st_size
                elif stat.S_ISREG(status.st_mode):
                    content = f.read(max_bytes)
                    max_bytes -= len(content)
                    files[name] = base64.b64encode(content).decode()
        except OSError:
            pass
    _print_json(mark, {"files": files, "left_out": left_out})


def _print_json(mark, value):
    """Write the mark and a value straight to standard output, which the snippet may have wrapped."""
    sys.stdout.flush()
    data = f"\n{mark}{json.dumps(value, ensure_ascii=False)}\n".encode("utf-8", "replace")
    while data:
        data = data[os.write(1, data) :]
