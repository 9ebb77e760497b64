"""tau-bench's airline and retail desks on the package's own tools, data and grading."""
