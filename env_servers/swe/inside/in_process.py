"""In process: pytest on hidden tests that import the code, with the repository's own settings of pytest but for its
addopts, and the plugins that are installed. The report goes out over a descriptor, once, with the word of this run. In
a container it runs in the image's own Python, 3.6 or later.

pytest and all that it needs are imported before the repository's directory is on the path, so nothing there takes their
names. Two tests beside the hidden ones must fail, one by an assertion and one by an error: where they pass, what runs
is no pytest any more."""

import contextlib
import io
import json
import os
import sys

import pytest

MOST_FAILURES, MOST_TEXT = 5, 300
CONTROLS = """def test_{a}():
    value = [1, 2]
    assert value == [2, 1]


def test_{b}():
    raise RuntimeError("must fail")
"""


class Collector:
    def __init__(self, control):
        self.control, self.tests, self.failures, self.controls = control, {}, {}, {}

    def pytest_runtest_logreport(self, report):
        kept = self.controls if self.control in report.nodeid else self.tests
        name = report.nodeid
        if report.when == "call" or report.outcome != "passed":
            kept[name] = report.outcome if kept.get(name) != "failed" else "failed"
        if report.failed and kept is self.tests:
            self.note(name, report)

    def pytest_collectreport(self, report):
        if report.failed:
            self.tests[report.nodeid or "collection"] = "failed"
            self.note(report.nodeid or "collection", report)

    def note(self, name, report):
        if len(self.failures) < MOST_FAILURES:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.failures[name] = (crash.message if crash else str(report.longrepr))[:MOST_TEXT]


def main(word, chosen, control, repo="/tmp/repo", out=4):
    dumps, write, end = json.dumps, os.write, os._exit
    os.chdir(repo)
    sys.dont_write_bytecode = True
    path = f"test_{control}.py"
    with open(path, "w") as f:
        f.write(CONTROLS.format(a=control, b=control[::-1] + "b"))
    collector = Collector(control)
    options = [
        "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler", "-p", "no:junitxml", "--rootdir", repo,
        "-o", "addopts=",
    ]  # fmt: skip
    sys.path[:0] = [path for path in (repo, repo + "/src") if os.path.isdir(path)]
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([*options, *chosen, path], plugins=[collector])
    controls = list(collector.controls.values())
    well = code == 1 and "failed" not in collector.tests.values()  # the controls have failed
    report = {
        "word": word,
        "exit": int(not well),
        "controls": controls,
        "tests": collector.tests,
        "failures": collector.failures,
    }
    data = dumps(report).encode()
    while data:
        data = data[write(out, data) :]
    end(0)
