from fractions import Fraction as F

import pytest

from matrix import Matrix, determinant, inverse, rank, solve


@pytest.mark.parametrize(("rows", "value"), [([[3]], 3), ([[0, 1], [1, 0]], -1), ([[2, 1], [4, 2]], 0), ([[2, 0, 1], [1, 3, 2], [1, 1, 1]], 0), ([[0, 2, 1], [1, 3, 2], [1, 1, 4]], -6), ([[2, 5], [1, 3]], 1)])
def test_determinants(rows, value):
    assert determinant(Matrix(rows)) == value


def test_a_determinant_needs_a_square():
    with pytest.raises(ValueError):
        determinant(Matrix([[1, 2]]))
    with pytest.raises(ValueError):
        inverse(Matrix([[1, 2]]))


@pytest.mark.parametrize(("rows", "value"), [([[1, 2], [2, 4]], 1), ([[1, 0], [0, 1]], 2), ([[0, 0]], 0), ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 2), ([[0, 1, 2], [0, 0, 3]], 2), ([[1], [2], [3]], 1)])
def test_ranks(rows, value):
    assert rank(Matrix(rows)) == value


def test_inverses():
    assert inverse(Matrix([[2, 0], [0, 4]])).rows() == [[F(1, 2), 0], [0, F(1, 4)]]
    assert inverse(Matrix([[0, 1], [1, 1]])).rows() == [[-1, 1], [1, 0]]
    m = Matrix([[2, 1, 0], [1, 3, 1], [0, 1, 4]])
    assert (m @ inverse(m)).rows() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_singular_matrix_has_no_inverse():
    with pytest.raises(ZeroDivisionError):
        inverse(Matrix([[1, 2], [2, 4]]))


def test_one_solution():
    assert solve(Matrix([[1, 1], [1, -1]]), [3, 1]) == [2, 1]
    assert solve(Matrix([[0, 2], [3, 0]]), [4, 9]) == [3, 2]
    assert solve(Matrix([[1, 0], [0, 1], [1, 1]]), [1, 2, 3]) == [1, 2]
    assert solve(Matrix([[3]]), [1]) == [F(1, 3)]


def test_no_solution():
    assert solve(Matrix([[1, 1], [1, 1]]), [1, 2]) is None
    assert solve(Matrix([[1], [1]]), [1, 2]) is None


def test_many_solutions():
    with pytest.raises(ValueError):
        solve(Matrix([[1, 1], [2, 2]]), [1, 2])
    with pytest.raises(ValueError):
        solve(Matrix([[1, 1]]), [1])


def test_as_many_right_sides_as_equations():
    with pytest.raises(ValueError):
        solve(Matrix([[1, 0], [0, 1]]), [1])
