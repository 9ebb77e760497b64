"""Traced sessions: an agent that only speaks OpenAI's API is the rollout loop; what the engine saw becomes the trajectory.

trace.py     requests of one session -> chains of tokens -> a Trajectory
session.py   sessions that are open; which one a request belongs to
agents.py    one trajectory by an external agent: offer the task, wait for its reward
routes.py    all of it over HTTP
"""
