"""Run pytest on hidden tests that import the code, with the repository's own settings of pytest except its addopts.

The report goes out over a descriptor, once, with the token of this run. In a container this runs in the image's own
Python, 3.6 or later. pytest, its plugins and everything that they need are imported before the repository's directory
is on the path, so that no file there can take their names; entry points that a patch brings name no plugin, because
none are looked for. Beside the hidden tests run controls whose outcome is known outside, under names drawn for this
run.
"""

import contextlib
import importlib
import importlib.machinery
import io
import json
import os
import sys

import pytest

MAX_FAILURES = 12
"""Failed tests whose messages are reported."""
MAX_TEXT = 800
"""Characters of such a message."""
NOT_OF_PYTEST = ("fractions", "pickle", "queue", "statistics", "timeit")
"""Modules of the standard library that a warm interpreter and plugins have imported, and pytest alone has not."""


class Collector:
    """A plugin that records the outcome of each test, in the order of the run, and the messages of the first
    failures."""

    def __init__(self, control):
        self.control = control
        self.tests = {}
        self.failures = {}
        self.controls = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        """Remove the reporter, whose output nobody reads. Its options and settings stay."""
        if config.pluginmanager.hasplugin("terminalreporter"):
            config.pluginmanager.unregister(name="terminalreporter")

    def pytest_runtest_logreport(self, report):
        name = report.nodeid
        outcomes = self.controls if self.control in name else self.tests
        if report.when == "call" or report.outcome != "passed":
            outcomes[name] = report.outcome if outcomes.get(name) != "failed" else "failed"
        if report.failed and outcomes is self.tests:
            self.note(name, report)

    def pytest_collectreport(self, report):
        if report.failed:
            self.tests[report.nodeid or "collection"] = "failed"
            self.note(report.nodeid or "collection", report)

    def note(self, name, report):
        if len(self.failures) < MAX_FAILURES:
            self.failures[name] = message_of(report.longrepr)[:MAX_TEXT]


class Installed:
    """A plugin that registers the plugins which were installed before the patch, under the names of their entry
    points."""

    def __init__(self, plugins):
        """Import the plugins, while nothing of the repository is on the path. One that cannot be imported is left
        out."""
        self.loaded = []
        for name, place in plugins:
            module, _, inner = place.partition(":")
            try:
                plugin = importlib.import_module(module)
                for part in filter(None, inner.split(".")):
                    plugin = getattr(plugin, part)
            except Exception:
                continue
            self.loaded.append((name, plugin))

    def pytest_plugin_registered(self, manager):
        """Register the plugins as soon as this one is, which is before options are parsed."""
        waiting = self.loaded
        self.loaded = []
        for name, plugin in waiting:
            if manager.get_plugin(name) is None and not manager.is_blocked(name) and not manager.is_registered(plugin):
                manager.register(plugin, name)


class OwnModules:
    """A plugin by which a repository's module with a name of NOT_OF_PYTEST is found, as in a fresh interpreter."""

    def __init__(self, directories):
        self.directories = directories

    def pytest_collection(self):
        """Forget the standard library's module, which everything that needs it has imported by now."""
        for name in NOT_OF_PYTEST:
            spec = importlib.machinery.PathFinder.find_spec(name, self.directories)
            if spec is not None and spec.origin:
                sys.modules.pop(name, None)


def message_of(failure):
    """Return the line of the test that failed and pytest's explanation."""
    entries = getattr(getattr(failure, "reprtraceback", None), "reprentries", ())
    lines = [line for entry in entries[:1] for line in getattr(entry, "lines", ()) if line.startswith((">", "E"))]
    crash = getattr(failure, "reprcrash", None)
    # the error was raised deeper, in the code under test
    if crash is not None and not any(line.startswith("E") for line in lines):
        lines.append("E       " + crash.message)
    return "\n".join(lines) if lines else str(failure)


def main(token, chosen, control, plugins, repo="/tmp/repo", out=4):
    """Run the chosen tests and report their outcome.

    Args:
        token: Token of this run.
        chosen: Tests, as arguments of pytest.
        control: A name that no other file has, and the source of the controls.
        plugins: Name and module, or module:object, of the plugins that were installed before the patch.
        repo: Directory of the repository.
        out: Descriptor of the report.
    """
    dumps = json.dumps
    write = os.write
    end = os._exit
    name, source = control
    installed = Installed(plugins)
    os.chdir(repo)
    # A child that multiprocessing spawns runs the file of __main__ again, which is this program.
    vars(sys.modules["__main__"]).pop("__file__", None)
    sys.dont_write_bytecode = True
    path = f"test_{name}.py"
    with open(path, "w") as f:
        f.write(source)
    collector = Collector(name)
    options = [
        "--rootdir", repo, "-o", "addopts=", "-o", "required_plugins=",
        # It may be about a plugin that the repository does not know; with warnings as errors it would be fatal.
        "-W", "ignore:The configuration option:pytest.PytestDeprecationWarning",
    ]  # fmt: skip
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    source_directories = [path for path in (repo, repo + "/src") if os.path.isdir(path)]
    packages = [path for path in sys.path if path.endswith("-packages")]
    sys.path[:0] = source_directories
    # for the processes that tests start
    os.environ["PYTHONPATH"] = os.pathsep.join(source_directories + packages)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(options + list(chosen) + [path], plugins=[collector, installed, OwnModules(source_directories)])
    report = {
        "word": token,
        "controls": {name.rpartition("::")[2]: result for name, result in collector.controls.items()},
        "tests": collector.tests,
        "failures": collector.failures,
    }
    data = dumps(report).encode()
    while data:
        data = data[write(out, data) :]
    end(0)
