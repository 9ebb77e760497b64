import pytest

from roman import Roman, total


def test_a_number_shows_itself_as_a_numeral():
    assert str(Roman(1990)) == "MCMXC"
    assert repr(Roman(4)) == "Roman('IV')"
    assert int(Roman("xl")) == 40


@pytest.mark.parametrize("value", [0, 4000, -3])
def test_what_has_no_numeral_is_refused(value):
    with pytest.raises(ValueError):
        Roman(value)


def test_the_ends_of_the_range_are_numbers():
    assert int(Roman(1)) == 1 and int(Roman(3999)) == 3999


def test_sums_and_differences():
    assert str(Roman("X") + Roman("IV")) == "XIV"
    assert str(Roman("X") + 1) == "XI"
    assert str(Roman("X") - Roman("I")) == "IX"


def test_comparison():
    assert Roman("IV") == Roman(4)
    assert not Roman("IV") == Roman(5)
    assert Roman("IV") < Roman("V")
    assert not Roman("V") < Roman("V")
    assert hash(Roman(7)) == hash(Roman("VII"))


def test_next_begins_again_at_the_end():
    assert str(Roman(9).next()) == "X"
    assert str(Roman(9).next(5)) == "XIV"
    assert str(Roman(3999).next()) == "I"
    assert str(Roman(3998).next(2)) == "I"


def test_total():
    assert total(["I", "V", "X"]) == 16
    assert total([]) == 0
