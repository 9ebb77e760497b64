"""An environment's server as a Ray Serve deployment: as many copies as wanted, on the nodes of a Ray cluster, behind
one URL, replaced when they die.

    /reset, /schema, /health -> Serve's proxy -> any replica -> its server process
    /step, DELETE            -> that server process itself, at the URL which the reply of /reset names

Serve sends a request to any replica, and a session is in one. So a replica serves beside Serve, on an address of its
own, and says so: `EnvClient` sends a session's steps to the `server` of its /reset anyway, as it does for --processes.
Serve then only spreads sessions and keeps replicas alive. A replica that dies takes its sessions along: their steps
fail as infrastructure (env_lost), never with a reward, and new sessions go to the others."""
