"""The first process of the container: it imports and warms up, then forks a slot whenever the server asks for one.

    control socket: "ready" goes out once; b"slot <index>" or b"session" with the slot's socket comes in, any number of
    times; EOF ends everything

It never sees a request. The child of a request returns from `serve_slots` and calls the runner from `main`, so that a
snippet finds as many frames above it as in a fresh interpreter, and recursion ends at the same depth.
"""

import builtins
import gc
import json
import os
import signal
import socket
import sys


def main(programs: dict) -> None:
    """Warm up and serve slots. In the child of a request, run the request."""
    control_fd = int(sys.argv[1])
    options = json.loads(sys.argv[2])
    sys.path += options["paths"]
    modules = {
        name: _load(programs, name) for name in ("kernel", "slot", "session", "freeze", "notebook", "warmup", "runner")
    }
    slot = modules["slot"]
    warmup = modules["warmup"]
    runner = modules["runner"]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warmup.warm_up(light=options["light"], imports=options["imports"])
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise write to, hence copy, every page of this heap
    job = serve_slots(socket.socket(fileno=control_fd), modules, options, programs["seccomp"])
    source = job.prepare(runner)
    if source is None:
        job.converse()
    runner.run(source, slot.PATH, slot.STATUS_FD)


def _load(programs: dict, name: str):
    """Run a program as a module with its own copy of the builtins: a snippet may change those of its `__main__` as it
    likes."""
    module = type(sys)(name)
    module.__dict__["__builtins__"] = dict(vars(builtins))
    exec(programs[name], module.__dict__)
    return module


def serve_slots(control: socket.socket, modules: dict, options: dict, filter_program: bytes):
    """Serve requests for slots. Return only in the process of a snippet, with its Job, or its Notebook, whose source is
    None."""
    kernel = modules["kernel"]
    slot = modules["slot"]
    session = modules["session"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # slots that end leave no zombies
    own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    control.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            os._exit(0)
        kernel.setns(own_pid_namespace, kernel.NEWPID)  # without it the second unshare fails with EINVAL
        kernel.unshare(kernel.NEWPID)
        if os.fork() == 0:
            os.close(own_pid_namespace)
            os.close(control.detach())
            kind, _, index = message.partition(b" ")
            if kind == b"slot":
                shares_uid = not options["uid_range"]
                uid = 0 if shares_uid else 1 + int(index)
                return slot.Slot(descriptors[0], uid, shares_uid, kernel, options, filter_program).serve()
            session_slot = slot.Slot(
                descriptors[0], options["session_uid"], True, kernel, options, filter_program, kernel.SYS_PTRACE
            )
            return session.serve(session_slot, modules, options)
        os.close(descriptors[0])


if __name__ == "__main__":
    main(globals()["programs"])
