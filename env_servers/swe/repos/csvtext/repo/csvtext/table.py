"""Small queries on lists of records."""


def select(records, columns, limit=None, **equal):
    """The columns of the records whose fields are equal to `equal`; at most `limit`."""
    found = []
    for record in records:
        if limit is not None and len(found) >= limit:
            break
        if all(record.get(name) == value for name, value in equal.items()):
            found.append({name: record.get(name) for name in columns})
    return found


def sort_by(records, column, descending=False):
    """Stable; records without a value come last either way."""
    full = [r for r in records if r.get(column) is not None]
    empty = [r for r in records if r.get(column) is None]
    return sorted(full, key=lambda r: r[column], reverse=descending) + empty


def group_by(records, column, value):
    """For each value of `column`: how many, and of the numbers in `value` sum, smallest, largest and mean."""
    groups = {}
    for record in records:
        groups.setdefault(record.get(column), []).append(record.get(value))
    result = {}
    for key, values in groups.items():
        numbers = [v for v in values if v is not None]
        stats = {"count": len(values), "sum": sum(numbers)}
        if numbers:
            stats.update(min=min(numbers), max=max(numbers), mean=sum(numbers) / len(numbers))
        result[key] = stats
    return result


def join(left, right, on):
    """Each record of `left` with each of `right` that has the same value in `on`; fields of `left` win."""
    index = {}
    for record in right:
        index.setdefault(record.get(on), []).append(record)
    return [{**other, **record} for record in left for other in index.get(record.get(on), [])]
