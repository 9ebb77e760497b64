"""What this machine has and allows, and what a run takes of it: GPUs, room on disks, user namespaces, memory."""
