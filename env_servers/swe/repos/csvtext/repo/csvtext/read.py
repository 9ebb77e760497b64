"""Text -> rows."""


class CsvError(ValueError):
    """Text that is not CSV; `line` counts from 1."""

    def __init__(self, message, line):
        super().__init__(f"line {line}: {message}")
        self.line = line


def parse(text, separator=","):
    """Rows of texts. Quotes hold separators, line ends and doubled quotes; empty lines are left out."""
    rows, row, field = [], [], ""
    quoted = was_quoted = False
    line, at = 1, 0
    while at < len(text):
        letter = text[at]
        if quoted:
            if letter == '"' and text[at + 1 : at + 2] == '"':
                field += '"'
                at += 1
            elif letter == '"':
                quoted, was_quoted = False, True
            else:
                field += letter
                if letter == "\n":
                    line += 1
        elif letter == '"':
            if field or was_quoted:
                raise CsvError("a quote within a field", line)
            quoted = True
        elif letter == separator:
            row.append(field)
            field, was_quoted = "", False
        elif letter == "\n":
            if row or field or was_quoted:
                rows.append([*row, field])
            row, field, was_quoted = [], "", False
            line += 1
        elif letter != "\r":
            if was_quoted:
                raise CsvError("text behind a closing quote", line)
            field += letter
        at += 1
    if quoted:
        raise CsvError("a quote is not closed", line)
    if row or field or was_quoted:
        rows.append([*row, field])
    return rows


def convert(text):
    """An integer, a float, a boolean, None for nothing, or the text."""
    stripped = text.strip()
    if not stripped:
        return None
    if stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    for kind in (int, float):
        try:
            return kind(stripped)
        except ValueError:
            continue
    return text


def parse_records(text, separator=",", types=True):
    """The rows below the first as dicts with its names. Missing fields are None; too many are an error."""
    rows = parse(text, separator)
    if not rows:
        return []
    names = [name.strip() for name in rows[0]]
    if len(set(names)) != len(names):
        raise CsvError("a column's name occurs twice", 1)
    records = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) > len(names):
            raise CsvError(f"{len(row)} fields, but {len(names)} columns", number)
        values = [convert(value) if types else value for value in row]
        values += [None] * (len(names) - len(row))
        records.append(dict(zip(names, values)))
    return records
