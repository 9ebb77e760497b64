"""The fast lane: responses that would keep the gate waiting go on at engines that are kept at few sequences. Measure,
size, choose, move.

    lengths  how long responses get, the unfinished ones counted
    speeds   seconds of a token, by how many share the engine
    pace     in how many seconds the gate will ask for a group
    sizing   how many engines, with how many places; none when it gains nothing
    policy   which engines are lanes, and who goes there
    keeper   the only one that acts, once a tick

It selects nothing: groups are accepted, dropped and taken by the rules that hold without it, whatever their lengths;
tokens are only written sooner."""
