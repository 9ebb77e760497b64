"""What a learner rank keeps on disk: its checkpoint, the thread that writes it, and how another number of ranks reads
it."""
