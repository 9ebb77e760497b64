"""What shows methods at work: small tasks for a real language model from a package, the toy model and its tasks (toy/),
and published methods in miniature (reproduce/). Nobody who trains a model of their own imports it."""
