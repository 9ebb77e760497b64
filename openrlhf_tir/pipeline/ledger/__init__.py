"""The ledger: what became of every prompt, written so that no loss and no repetition can hide.

lines.py    the format of a line, its checksum, and the mark at which a checkpoint cuts the file
ledger.py   appends events while a run is going on, and rolls back on a resume
audit.py    replays a whole file and reports what is wrong with it
"""
