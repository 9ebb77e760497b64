from bank import Ledger, format_cents, parse_cents


def test_amounts():
    assert parse_cents("12.50") == 1250
    assert format_cents(1250) == "12.50"


def test_a_transfer():
    ledger = Ledger()
    ledger.open("ann").deposit(100)
    ledger.open("bob")
    ledger.transfer("ann", "bob", 30)
    assert (ledger.account("ann").balance, ledger.account("bob").balance) == (70, 30)
