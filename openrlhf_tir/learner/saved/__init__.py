"""What a learner rank stores on disk: its checkpoint, the thread that writes it, and reading one of other ranks."""
