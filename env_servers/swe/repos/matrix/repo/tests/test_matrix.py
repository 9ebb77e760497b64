from matrix import Matrix, determinant, identity


def test_a_product():
    assert (Matrix([[1, 2], [3, 4]]) @ Matrix([[0, 1], [1, 0]])).rows() == [[2, 1], [4, 3]]


def test_the_identity():
    assert identity(2).rows() == [[1, 0], [0, 1]]


def test_a_determinant():
    assert determinant(Matrix([[1, 2], [3, 4]])) == -2
