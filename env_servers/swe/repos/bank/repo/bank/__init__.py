"""A ledger."""

from .account import Account, BankError, InsufficientFunds
from .ledger import Ledger
from .money import allocate, format_cents, interest, parse_cents

__all__ = ["Account", "BankError", "InsufficientFunds", "Ledger", "allocate", "format_cents", "interest", "parse_cents"]
