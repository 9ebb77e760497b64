"""Amounts in whole cents."""

import re

_AMOUNT = re.compile(r"(-?)(\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d{1,2}))?")


def parse_cents(text):
    """"1,234.5" -> 123450. Raises ValueError."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no amount")
    sign, whole, part = match.groups()
    cents = int(whole.replace(",", "")) * 100 + int((part or "0").ljust(2, "0"))
    return -cents if sign else cents


def format_cents(cents, currency=""):
    """-123450 -> "-1,234.50"; a currency stands behind."""
    whole, part = divmod(abs(cents), 100)
    text = f"{whole:,}.{part:02d}"
    if cents < 0:
        text = "-" + text
    return f"{text} {currency}" if currency else text


def allocate(cents, shares):
    """Parts in proportion to `shares` that add up to `cents`: what is left over goes to the first ones, a cent each."""
    total = sum(shares)
    if total <= 0 or any(share < 0 for share in shares):
        raise ValueError("shares are not negative, and not all zero")
    parts = [cents * share // total for share in shares]
    left = cents - sum(parts)
    for i in range(len(parts)):
        if left <= 0:
            break
        if shares[i] > 0:
            parts[i] += 1
            left -= 1
    return parts


def interest(cents, percent, days, year=365):
    """Simple interest in whole cents, half a cent rounded up."""
    if days < 0:
        raise ValueError("days are not negative")
    numerator, denominator = cents * percent * days, 100 * year
    return (2 * numerator + denominator) // (2 * denominator)
