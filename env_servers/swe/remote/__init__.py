"""Remote: rows whose repository is in a container image of its own, through a runtime API as OpenHands' (and
SkyRL-v0's) remote runtime has it.

    POST /start {image, ...} -> container; GET /runtime/{id}, GET {container}/alive until it answers         api.py
    POST {container}/execute_action, /upload_file, GET {container}/download_files
    container.py
    a script in a container, started, waited for and its output fetched                                      jobs.py
    task -> container, its history cut off -> bash, editor -> patch -> a second, fresh container -> tests    work.py,
    judging.py, backend.py

What runs in a container is the model's: its answers are data with bounds, never trusted. A container that does not
start, is gone, is late or answers nonsense is a `RuntimeFault` with a name, which is outcome env_error: no reward, and
counted.
"""
