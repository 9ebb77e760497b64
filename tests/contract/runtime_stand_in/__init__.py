"""A stand-in for OpenHands' runtime API, for tests: no containers and no images, but real processes.

api.py         the API itself
docker.py      the `docker` command instead, over the same processes
processes.py   a container: a process in namespaces of bubblewrap, with a /testbed, a /tmp and process ids of its own
actions.py     what runs in there: the server of actions, with a real bash
"""
