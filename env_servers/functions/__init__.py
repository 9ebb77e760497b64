"""Function calling with state: domains of typed functions, tasks whose gold is a sequence of calls, users who speak in
turns."""
