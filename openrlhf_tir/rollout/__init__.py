"""What runs beside an engine: a task becomes n episodes, and these become a rewarded and filtered group.

group_runner.py       one prompt -> n trajectories -> rewards -> verdict; deadlines, seeds, selection
episode.py            one trajectory: the engine and the environment take turns
request_queue.py      the queue in front of the engine; sequence_migration.py: a response goes on at another engine
protocols/            how model and environment talk: turn protocols, messages, agent files, parsers of calls
environment_client/   sessions on environment servers
serving/              the actor over HTTP, for everyone but the run's own controller
agent_broker.py       responses written by external programs over HTTP
sample_selection.py   which trajectories of a group are used
reward_shaping.py     length penalties and clipping
group_judge.py        group reward, filters, masks
group_meta.py         what the controller is told about a group
drift.py              whether tokens and text still agree
"""
