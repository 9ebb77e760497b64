"""Software engineering: a session has a repository, bash and an editor. Hidden tests judge the git patch that it
leaves.

    task -> Tree (the repository, broken)
         -> session (a warm interpreter of python_tir: namespaces, limits, its own /tmp) -> patch
    patch -> applied to a fresh Tree in a sandbox -> files
          -> hidden tests, and falsified copies of them that must fail -> reward 1 or 0

`inside/` has the programs that run in the sandbox, `repos/` the repositories of which tasks are made.
"""
