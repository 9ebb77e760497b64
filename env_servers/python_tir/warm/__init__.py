"""Warm workers: bubblewrap containers in which each call is a fork of an interpreter that has already imported
libraries.

    server                     container, one for each template (`template`: light, full)
    WarmSandbox.run(code) ->   master: imports and warms up; never sees a request
                                 └ slot: PID 1 of its own namespaces; one call at a time; holds descriptors of a
                                   request, never its bytes
                                     └ child: one fork per call; unprivileged, limited, filtered; runs the snippet
                                       as `__main__`
                                 └ session: like a slot, around one child that keeps its state (a notebook), for
                                   the calls of one session

The programs that run inside (kernel, master, slot, session, freeze, notebook, warmup) are compiled by the server,
shipped as marshal and never imported by it.
"""
