"""Matrices as lists of rows."""


class Matrix:
    def __init__(self, rows):
        rows = [list(row) for row in rows]
        if not rows or not rows[0]:
            raise ValueError("a matrix has at least one row and one column")
        if any(len(row) != len(rows[0]) for row in rows):
            raise ValueError("all rows have the same length")
        self._rows = rows

    @property
    def shape(self):
        """(rows, columns)."""
        return len(self._rows), len(self._rows[0])

    def rows(self):
        return [list(row) for row in self._rows]

    def columns(self):
        return [list(column) for column in zip(*self._rows)]

    def __getitem__(self, place):
        row, column = place
        return self._rows[row][column]

    def __eq__(self, other):
        return isinstance(other, Matrix) and self._rows == other._rows

    def __add__(self, other):
        self._same_shape(other)
        return Matrix([a + b for a, b in zip(r, s)] for r, s in zip(self._rows, other._rows))

    def __sub__(self, other):
        self._same_shape(other)
        return Matrix([a - b for a, b in zip(r, s)] for r, s in zip(self._rows, other._rows))

    def __mul__(self, factor):
        """By a number."""
        return Matrix([a * factor for a in row] for row in self._rows)

    def __matmul__(self, other):
        if self.shape[1] != other.shape[0]:
            raise ValueError(f"{self.shape} and {other.shape} cannot be multiplied")
        columns = other.columns()
        return Matrix([sum(a * b for a, b in zip(row, column)) for column in columns] for row in self._rows)

    def __pow__(self, exponent):
        """By squaring; an exponent of 0 gives the identity."""
        if self.shape[0] != self.shape[1]:
            raise ValueError("only square matrices have powers")
        if exponent < 0:
            raise ValueError("the exponent is negative")
        result, base = identity(self.shape[0]), self
        while exponent:
            if exponent % 2 == 1:
                result = result @ base
            base = base @ base
            exponent //= 2
        return result

    def transpose(self):
        return Matrix(self.columns())

    def trace(self):
        """The sum of the diagonal."""
        return sum(self._rows[i][i] for i in range(min(self.shape)))

    def minor(self, row, column):
        """Without one row and one column."""
        return Matrix([r[:column] + r[column + 1 :] for i, r in enumerate(self._rows) if i != row])

    def is_symmetric(self):
        return self.shape[0] == self.shape[1] and self == self.transpose()

    def map(self, function):
        return Matrix([function(a) for a in row] for row in self._rows)

    def _same_shape(self, other):
        if self.shape != other.shape:
            raise ValueError(f"shapes {self.shape} and {other.shape} differ")


def identity(size):
    return Matrix([1 if i == j else 0 for j in range(size)] for i in range(size))
