"""The proof of weight pushes, measured: right pushes must pass, broken ones must fail. See docs/weights.md."""
