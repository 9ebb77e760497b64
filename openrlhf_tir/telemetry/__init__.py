"""What every room may write about a run: metrics, histograms, JSON lines, the timeline, progress for a person."""
