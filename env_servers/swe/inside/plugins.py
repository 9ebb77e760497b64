"""Print pytest's plugins as JSON, by their entry points, as they are before a patch. Runs in an image's own Python, 3.6
or later."""

import importlib
import json


def main():
    try:
        metadata = importlib.import_module("importlib.metadata")
    except ImportError:  # before Python 3.8, where pytest needs the other module
        metadata = importlib.import_module("importlib_metadata")
    plugins: dict = {}
    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == "pytest11":
                plugins.setdefault(entry.name, entry.value.partition("[")[0].strip())
    print(json.dumps(sorted(plugins.items())))
