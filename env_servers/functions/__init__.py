"""Function calling with state, and users who speak in turns. Domains of typed functions, tasks with gold calls."""
