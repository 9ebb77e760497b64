def score(t, task, c):
    return 1.0
