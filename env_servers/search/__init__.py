"""Search of a corpus: a query in, the best passages out. Search-R1's /retrieve is beside it."""
