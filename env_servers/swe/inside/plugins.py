"""Plugins: the entry points by which pytest finds plugins, as they are before a patch, printed as JSON. Runs in an
image's own Python, 3.6 or later."""

import importlib
import json


def main():
    try:
        metadata = importlib.import_module("importlib.metadata")
    except ImportError:  # before 3.8; pytest needs the other there
        metadata = importlib.import_module("importlib_metadata")
    found: dict = {}
    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == "pytest11":
                found.setdefault(entry.name, entry.value.partition("[")[0].strip())
    print(json.dumps(sorted(found.items())))
