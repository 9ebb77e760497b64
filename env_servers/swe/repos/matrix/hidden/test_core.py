import pytest

from matrix import Matrix, identity

A = [[1, 2, 3], [4, 5, 6]]


def test_shape_rows_and_columns():
    m = Matrix(A)
    assert m.shape == (2, 3)
    assert m.rows() == A
    assert m.columns() == [[1, 4], [2, 5], [3, 6]]
    assert m[1, 2] == 6 and m[0, 1] == 2


@pytest.mark.parametrize("rows", [[], [[]], [[1], [1, 2]], [[1, 2], [3]]])
def test_what_is_no_matrix(rows):
    with pytest.raises(ValueError):
        Matrix(rows)


def test_equality():
    assert Matrix(A) == Matrix(A)
    assert Matrix(A) != Matrix([[1, 2, 3], [4, 5, 7]])


def test_sums():
    assert (Matrix(A) + Matrix(A)).rows() == [[2, 4, 6], [8, 10, 12]]
    assert (Matrix(A) - Matrix([[1, 1, 1], [2, 2, 2]])).rows() == [[0, 1, 2], [2, 3, 4]]
    for bad in (lambda: Matrix(A) + Matrix([[1, 2]]), lambda: Matrix(A) - Matrix([[1], [2]])):
        with pytest.raises(ValueError):
            bad()


def test_products():
    assert (Matrix(A) * 3).rows() == [[3, 6, 9], [12, 15, 18]]
    assert (Matrix(A) @ Matrix([[1], [0], [2]])).rows() == [[7], [16]]
    assert (Matrix([[1, 2]]) @ Matrix([[3], [4]])).rows() == [[11]]
    with pytest.raises(ValueError):
        Matrix(A) @ Matrix(A)


@pytest.mark.parametrize(("n", "rows"), [(0, [[1, 0], [0, 1]]), (1, [[1, 1], [1, 0]]), (2, [[2, 1], [1, 1]]), (5, [[8, 5], [5, 3]]), (10, [[89, 55], [55, 34]])])
def test_powers(n, rows):
    assert (Matrix([[1, 1], [1, 0]]) ** n).rows() == rows


def test_powers_that_are_not():
    with pytest.raises(ValueError):
        Matrix(A) ** 2
    with pytest.raises(ValueError):
        Matrix([[2]]) ** -1


def test_transpose_and_trace():
    assert Matrix(A).transpose().rows() == [[1, 4], [2, 5], [3, 6]]
    assert Matrix(A).trace() == 6
    assert Matrix([[1, 2], [3, 4], [5, 6]]).trace() == 5


def test_minor():
    m = Matrix([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert m.minor(0, 0).rows() == [[5, 6], [8, 9]]
    assert m.minor(1, 2).rows() == [[1, 2], [7, 8]]
    assert m.minor(2, 1).rows() == [[1, 3], [4, 6]]


def test_symmetry():
    assert Matrix([[1, 2], [2, 3]]).is_symmetric() is True
    assert Matrix([[1, 2], [3, 3]]).is_symmetric() is False
    assert Matrix(A).is_symmetric() is False


def test_map_and_identity():
    assert Matrix(A).map(lambda a: a * a).rows() == [[1, 4, 9], [16, 25, 36]]
    assert identity(3).rows() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
