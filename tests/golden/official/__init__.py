"""Rules of the official code that the golden rows ask for and the package has no use for, one file per method."""
