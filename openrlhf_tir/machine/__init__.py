"""What this machine has and allows: GPUs, room on disks, user namespaces. Only the standard library is imported."""
