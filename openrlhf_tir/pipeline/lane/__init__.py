"""The fast lane (pipeline.fast_lane): engines that are kept at few sequences, for the longest responses.

An engine with few sequences writes each of them faster. Responses that would keep the staleness gate waiting are moved
there and continue.

    lengths.py   how long responses get, with the unfinished ones counted
    speeds.py    seconds per token, by how many sequences share the engine
    pace.py      seconds until the gate asks for a group
    sizing.py    how many fast-lane engines, with how many places; none if that gains nothing
    policy.py    which engines are fast-lane engines, and which responses move there
    keeper.py    the only part that acts: once a tick it measures, sizes, decides and moves

The fast lane selects nothing. Groups are accepted, dropped and trained by the same rules as without it, whatever their
lengths; tokens are only written sooner.
"""
