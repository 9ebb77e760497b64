"""Evaluation: the problems of a suite become items (what was sampled of each), and these become figures with intervals.

Nothing here knows an engine or Ray: the caller samples groups and hands them in.

    suites.py, forms.py    the named suites: where each is found, its form, and its rows in this project's form
    generated.py           the suites whose rows one of the environments makes
    items.py, store.py     one JSON line per problem; which problems are done already
    scores/                one formula per file: pass@k, maj@k, tool use, bootstrap; figures.py puts them together
    settings.py            the settings under which a problem is sampled, and a sweep over several values
    plan.py, table.py      what is to be sampled; what the command prints and writes
"""
