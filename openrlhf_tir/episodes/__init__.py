"""What runs beside an engine: a task becomes n episodes, and these become a rewarded and filtered group.

group_runner.py       one prompt -> n trajectories -> rewards -> verdict; deadlines, seeds, selection
episode.py            one trajectory: the engine and the environment take turns
rendering.py          how an observation becomes text and tokens; chat_rendering.py: with a chat template
chat_format.py        the chat template of one environment's conversations
turns/                turn protocols: which text of the model is a call, and how its result is shown
calls/                parsers of tool calls
agent_broker.py       responses written by external programs over HTTP
agent_file/           responses written by an agent file in OpenRLHF's form
sample_selection.py   which trajectories of a group are used
reward_shaping.py     length penalties and clipping
group_evaluator.py    group reward, filters, masks
group_meta.py         what the controller is told about a group
drift.py              whether tokens and text still agree
"""
