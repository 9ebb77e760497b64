import pytest

from bank import Account, BankError, InsufficientFunds, Ledger


def test_deposits_and_withdrawals():
    a = Account("ann")
    a.deposit(500)
    a.withdraw(200, "rent")
    assert a.balance == 300
    assert a.available() == 300
    assert a.statement() == [(0, "deposit", 500, 500), (1, "rent", -200, 300)]
    assert a.statement(since=1) == [(1, "rent", -200, 300)]
    assert a.totals() == (500, 200)


def test_funds():
    a = Account("ann", overdraft=50)
    a.deposit(100)
    with pytest.raises(InsufficientFunds) as error:
        a.withdraw(151)
    assert (error.value.needed, error.value.available) == (151, 150)
    a.withdraw(150)
    assert a.balance == -50
    assert a.available() == 0


@pytest.mark.parametrize("cents", [0, -5, 1.5, True, "7"])
def test_amounts_are_positive_integers(cents):
    a = Account("ann", overdraft=100)
    with pytest.raises(BankError):
        a.deposit(cents)
    with pytest.raises(BankError):
        a.withdraw(cents)
    assert a.balance == 0


def test_a_frozen_account():
    a = Account("ann", overdraft=100)
    a.frozen = True
    with pytest.raises(BankError):
        a.deposit(1)
    with pytest.raises(BankError):
        a.withdraw(1)


def bank(fee=0, **balances):
    ledger = Ledger(fee)
    for name, cents in balances.items():
        account = ledger.open(name)
        if cents:
            account.deposit(cents)
    return ledger


def balances(ledger):
    return {name: ledger.account(name).balance for name in ledger.names()}


def test_opening_and_closing():
    ledger = bank(ann=0, bob=5)
    assert ledger.names() == ["ann", "bob"]
    for name in ("ann", "", "bank"):
        with pytest.raises(BankError):
            ledger.open(name)
    ledger.close("ann")
    assert ledger.names() == ["bob"]
    for name in ("bob", "ann"):
        with pytest.raises(BankError):
            ledger.close(name)
    assert ledger.open("cy", overdraft=9).available() == 9


def test_a_transfer_is_told_on_both_sides():
    ledger = bank(ann=100, bob=0)
    ledger.transfer("ann", "bob", 100)
    assert balances(ledger) == {"ann": 0, "bob": 100}
    assert ledger.account("ann").statement() == [(0, "deposit", 100, 100), (1, "to bob", -100, 0)]
    assert ledger.account("bob").statement() == [(0, "from ann", 100, 100)]


def test_fees():
    ledger = bank(fee=3, ann=100, bob=0)
    ledger.transfer("ann", "bob", 50)
    assert balances(ledger) == {"ann": 47, "bob": 50}
    assert ledger.account("bank").balance == 3
    assert ledger.total() == 100
    with pytest.raises(BankError):
        ledger.transfer("ann", "bob", 45)
    assert balances(ledger) == {"ann": 47, "bob": 50}
    ledger.transfer("ann", "bob", 44)
    assert balances(ledger) == {"ann": 0, "bob": 94}


def test_transfers_that_are_refused_change_nothing():
    ledger = bank(ann=100, bob=0)
    for sender, receiver, cents in (("ann", "ann", 1), ("ann", "nobody", 1), ("nobody", "ann", 1), ("ann", "bob", 101), ("bob", "ann", 1)):
        with pytest.raises(BankError):
            ledger.transfer(sender, receiver, cents)
    ledger.account("bob").frozen = True
    with pytest.raises(BankError):
        ledger.transfer("ann", "bob", 1)
    assert balances(ledger) == {"ann": 100, "bob": 0}


def test_a_bill():
    ledger = bank(ann=0, bob=100, cy=100)
    assert ledger.split_bill("ann", ["bob", "cy"], 100) == [33, 33]
    assert balances(ledger) == {"ann": 66, "bob": 67, "cy": 67}
    assert ledger.split_bill("ann", ["bob", "cy"], 1) == [0, 0]
    assert ledger.split_bill("ann", ["bob"], 3) == [1]


def test_the_richest():
    ledger = bank(ann=5, bob=9, cy=9, di=1)
    assert ledger.richest() == [("bob", 9)]
    assert ledger.richest(3) == [("bob", 9), ("cy", 9), ("ann", 5)]
