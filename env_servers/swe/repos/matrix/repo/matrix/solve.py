"""Elimination over fractions: nothing is rounded."""

from fractions import Fraction

from .core import Matrix


def _eliminate(rows, columns):
    """(reduced rows, pivot columns, sign and product of what was divided by): Gauss-Jordan over the first `columns`."""
    rows = [[Fraction(a) for a in row] for row in rows]
    pivots, factor, done = [], Fraction(1), 0
    for column in range(columns):
        found = next((i for i in range(done, len(rows)) if rows[i][column] != 0), None)
        if found is None:
            continue
        if found != done:
            rows[found], rows[done] = rows[done], rows[found]
            factor = -factor
        pivot = rows[done][column]
        factor *= pivot
        rows[done] = [a / pivot for a in rows[done]]
        for i in range(len(rows)):
            if i != done and rows[i][column] != 0:
                times = rows[i][column]
                rows[i] = [a - times * b for a, b in zip(rows[i], rows[done])]
        pivots.append(column)
        done += 1
        if done == len(rows):
            break
    return rows, pivots, factor


def determinant(matrix):
    size, columns = matrix.shape
    if size != columns:
        raise ValueError("only square matrices have a determinant")
    _, pivots, factor = _eliminate(matrix.rows(), size)
    return factor if len(pivots) == size else Fraction(0)


def rank(matrix):
    return len(_eliminate(matrix.rows(), matrix.shape[1])[1])


def inverse(matrix):
    """Raises ZeroDivisionError for a singular matrix."""
    size, columns = matrix.shape
    if size != columns:
        raise ValueError("only square matrices have an inverse")
    wide = [row + [1 if i == j else 0 for j in range(size)] for i, row in enumerate(matrix.rows())]
    rows, pivots, _ = _eliminate(wide, size)
    if len(pivots) < size:
        raise ZeroDivisionError("the matrix is singular")
    return Matrix(row[size:] for row in rows)


def solve(matrix, right):
    """The only x with matrix @ x = right, as a list; None where there is none; ValueError where there are many."""
    size, columns = matrix.shape
    if len(right) != size:
        raise ValueError(f"{size} equations have {size} right sides, not {len(right)}")
    wide = [row + [value] for row, value in zip(matrix.rows(), right)]
    rows, pivots, _ = _eliminate(wide, columns)
    if any(row[columns] != 0 for row in rows[len(pivots) :]):
        return None
    if len(pivots) < columns:
        raise ValueError("the equations have more than one solution")
    return [row[columns] for row in rows[:columns]]
