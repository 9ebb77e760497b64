"""Evaluation: a suite's problems -> items (what was sampled of each) -> figures with intervals, and sweeps of them. No
engine, no Ray: those who sample hand groups in.

    suites.py, forms.py    the named sets: where each is had, in which form, and its rows as ours
    made.py                the sets whose rows one of our environments makes
    items.py, store.py     one JSONL row per problem; which are done already
    scores/                one formula per file: pass@k, maj@k, tool use, bootstrap; figures.py puts them together
    settings.py            the settings under which a problem is sampled, and a sweep of several
    plan.py, table.py      what was asked for -> what is sampled of what; figures -> what the command prints and writes
"""
