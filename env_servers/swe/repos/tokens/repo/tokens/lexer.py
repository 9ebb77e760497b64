"""Text -> tokens, as (kind, text, column) with columns from 1."""


class LexError(Exception):
    """A character that begins no token."""

    def __init__(self, message, column):
        super().__init__(message)
        self.column = column


OPERATORS = ("**", "//", "+", "-", "*", "/", "%", "(", ")", ",")


def tokenize(text):
    tokens = []
    at = 0
    while at < len(text):
        letter = text[at]
        if letter.isspace():
            at += 1
            continue
        if letter == "#":
            break
        start = at
        if letter.isdigit() or (letter == "." and text[at + 1 : at + 2].isdigit()):
            at = _number_end(text, at)
            tokens.append(("number", text[start:at], start + 1))
            continue
        if letter.isalpha() or letter == "_":
            while at < len(text) and (text[at].isalnum() or text[at] == "_"):
                at += 1
            tokens.append(("name", text[start:at], start + 1))
            continue
        for operator in OPERATORS:
            if text.startswith(operator, at):
                at += len(operator)
                tokens.append(("op", operator, start + 1))
                break
        else:
            raise LexError(f"unexpected {letter!r}", start + 1)
    return tokens


def _number_end(text, at):
    seen_point = False
    while at < len(text):
        if text[at] == "." and not seen_point:
            seen_point = True
        elif not text[at].isdigit():
            break
        at += 1
    return at
