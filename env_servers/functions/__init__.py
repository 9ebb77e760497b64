"""Function calling with state: domains of typed functions, tasks with gold calls, users who speak in turns."""
