"""Function calling with state, and users who speak in turns: domains of typed functions, and tasks with gold calls."""
