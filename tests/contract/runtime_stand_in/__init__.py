"""A stand-in for OpenHands' runtime API, for tests: no containers and no images, but real processes.

api.py       the API itself; a container is a process of its own in namespaces of bubblewrap, with its own /testbed, /tmp and process ids
actions.py   what runs in there: the server of actions, with a real bash
"""
