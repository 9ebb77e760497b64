"""All accounts of a bank."""

from .account import Account, BankError
from .money import allocate


class Ledger:
    def __init__(self, fee=0):
        """`fee` in cents for each transfer, paid by the sender to the account "bank"."""
        self.fee = fee
        self._accounts = {"bank": Account("bank")}

    def open(self, name, overdraft=0):
        if not name or name in self._accounts:
            raise BankError(f"there is an account {name!r} already, or it has no name")
        self._accounts[name] = Account(name, overdraft)
        return self._accounts[name]

    def close(self, name):
        """Only an empty account can be closed."""
        account = self.account(name)
        if account.balance != 0:
            raise BankError(f"account {name} is not empty")
        del self._accounts[name]

    def account(self, name):
        if name not in self._accounts:
            raise BankError(f"there is no account {name!r}")
        return self._accounts[name]

    def names(self):
        return sorted(name for name in self._accounts if name != "bank")

    def transfer(self, sender, receiver, cents):
        """All of it or nothing."""
        if sender == receiver:
            raise BankError("sender and receiver are the same")
        source, target = self.account(sender), self.account(receiver)
        if target.frozen:
            raise BankError(f"account {receiver} is frozen")
        if cents + self.fee > source.available():
            raise BankError(f"account {sender} has too little for {cents} and a fee of {self.fee}")
        source.withdraw(cents, f"to {receiver}")
        target.deposit(cents, f"from {sender}")
        if self.fee:
            source.withdraw(self.fee, "fee")
            self._accounts["bank"].deposit(self.fee, f"fee of {sender}")

    def split_bill(self, payer, others, cents):
        """Each of `others` pays an equal part of the bill to `payer`, who has a part as well. The parts of the others."""
        parts = allocate(cents, [1] * (len(others) + 1))[1:]
        for other, part in zip(others, parts):
            if part:
                self.transfer(other, payer, part)
        return parts

    def total(self):
        """Of all accounts, the bank's own included."""
        return sum(account.balance for account in self._accounts.values())

    def richest(self, count=1):
        """Names and balances, the largest first, equal ones by name."""
        ranked = sorted(self.names(), key=lambda name: (-self._accounts[name].balance, name))
        return [(name, self._accounts[name].balance) for name in ranked[:count]]
