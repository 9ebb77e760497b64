"""What a run can go on from: writing, proving and reading a checkpoint."""
