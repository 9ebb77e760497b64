"""What several rewards read out of text: answers, calls, code, and whether two answers are the same."""
