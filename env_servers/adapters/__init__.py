"""Adapters: environments and tools of other projects behind our protocol, and ours behind theirs.

An adapter needs the other project's package only when it is started.
"""
