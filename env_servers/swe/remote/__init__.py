"""Rows whose repository is in a container image, through a runtime API like that of OpenHands' (and SkyRL-v0's) remote
runtime.

    api.py           POST /start {image, ...} -> container; GET /runtime/{id}, GET {container}/alive until it answers
    docker.py        the same with the Docker of this machine
    container.py     POST {container}/execute_action, /upload_file, GET {container}/download_files
    image_layout.py  what an image has; cuts off the history of its repository
    jobs.py          a script in a container: started, awaited, its output fetched
    work.py          a session: bash, editor, patch
    judging.py       patch -> a second, fresh container -> tests
    backend.py       sessions of the server; tries again what fails by no fault of the row

The model controls what runs in a container: its answers are data with bounds, never trusted. A container that does not
start, is gone, is late or answers nonsense is a `RuntimeFault` with a name, which is outcome env_error: no reward, and
counted.
"""
