"""What a learner rank keeps on disk: a checkpoint, the thread that writes it, how another number of ranks reads it."""
