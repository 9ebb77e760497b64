"""What this machine has and allows, and what a run takes of it: GPUs, disks, files, user namespaces, memory."""
