"""tau-bench's airline and retail desks, by the package tau-bench. On its own tools, data and grading."""
