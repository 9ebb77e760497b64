"""Serve tau-bench's airline and retail desks, with the package tau-bench. Tools, data and grading are the package's
own."""
