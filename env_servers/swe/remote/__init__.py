"""Remote: rows whose repository is in a container image of its own, through a runtime API as OpenHands' (and
SkyRL-v0's) remote runtime has it.

    api.py        POST /start {image, ...} -> container; GET /runtime/{id}, GET {container}/alive until it answers
    container.py  POST {container}/execute_action, /upload_file, GET {container}/download_files
    jobs.py       a script in a container, started, waited for and its output fetched
    work.py       task -> container, its history cut off -> bash, editor -> patch
    judging.py    patch -> a second, fresh container -> tests
    backend.py    sessions of the server on these; what fails by no fault of the row is tried again

What runs in a container is the model's: its answers are data with bounds, never trusted. A container that does not
start, is gone, is late or answers nonsense is a `RuntimeFault` with a name, which is outcome env_error: no reward, and
counted.
"""
