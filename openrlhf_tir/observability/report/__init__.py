"""The report of a run, the comparison of several, and the samples, made from what a run has written."""
