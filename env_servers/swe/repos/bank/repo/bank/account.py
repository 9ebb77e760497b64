"""One account."""


class BankError(Exception):
    """What the bank refuses."""


class InsufficientFunds(BankError):
    def __init__(self, needed, available):
        super().__init__(f"{needed} cents are needed, {available} are there")
        self.needed = needed
        self.available = available


class Account:
    def __init__(self, name, overdraft=0):
        self.name = name
        self.overdraft = overdraft
        self.balance = 0
        self.frozen = False
        self.entries = []

    def available(self):
        return self.balance + self.overdraft

    def deposit(self, cents, text="deposit"):
        self._check(cents)
        self._book(cents, text)

    def withdraw(self, cents, text="withdrawal"):
        self._check(cents)
        if cents > self.available():
            raise InsufficientFunds(cents, self.available())
        self._book(-cents, text)

    def statement(self, since=0):
        """Lines of (number, text, amount, balance after it), from entry number `since` on."""
        balance, lines = 0, []
        for number, (text, amount) in enumerate(self.entries):
            balance += amount
            if number >= since:
                lines.append((number, text, amount, balance))
        return lines

    def totals(self):
        """(what came in, what went out)."""
        came = sum(amount for _, amount in self.entries if amount > 0)
        went = -sum(amount for _, amount in self.entries if amount < 0)
        return came, went

    def _check(self, cents):
        if self.frozen:
            raise BankError(f"account {self.name} is frozen")
        if isinstance(cents, bool) or not isinstance(cents, int) or cents <= 0:
            raise BankError("an amount is a positive number of cents")

    def _book(self, amount, text):
        self.balance += amount
        self.entries.append((text, amount))
