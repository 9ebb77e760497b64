"""Read a Python script that trains with TRL, without running it.

syntax.py          what its tree says by itself
definitions.py     its functions, classes and imports
values.py          what its expressions are worth; UNKNOWN where only a run can tell
function_names.py  the functions in a list of rewards or tools
dataset.py         the data set that it loads
copied_code.py     functions with what they need, for a file of their own
"""
