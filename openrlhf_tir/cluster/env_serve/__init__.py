"""An environment's server as a Ray Serve deployment: several copies on the nodes of a Ray cluster, behind one URL,
replaced when they die.

    /reset, /schema, /health -> Serve's proxy -> any replica -> its server process
    /step, DELETE            -> that server process itself, at the URL in the reply of /reset

Serve sends a request to any replica, but a session lives in one of them. So each replica also serves on its own address
and announces it: `EnvClient` sends the steps of a session to the `server` of its /reset reply, as it does for
--processes. Serve only spreads the sessions and keeps replicas alive. If a replica dies, the steps of its sessions fail
as infrastructure (env_lost), never with a reward, and new sessions go to the others.
"""
