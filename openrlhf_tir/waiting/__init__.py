"""How code waits: deadlines, pauses between attempts, tasks that must keep running, time without suspensions."""
