"""Search in a corpus: a query in, the best passages out. Search-R1's /retrieve is served beside the environment."""
