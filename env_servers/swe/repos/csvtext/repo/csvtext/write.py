"""Rows -> text."""


def quote(value, separator):
    text = "" if value is None else str(value)
    if separator in text or '"' in text or "\n" in text or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def render(records, columns=None, separator=","):
    """Records as CSV with a line of names. `columns`: which, and in which order; default: all, as they come first."""
    if columns is None:
        columns = []
        for record in records:
            columns += [name for name in record if name not in columns]
    lines = [separator.join(quote(name, separator) for name in columns)]
    for record in records:
        lines.append(separator.join(quote(record.get(name), separator) for name in columns))
    return "\n".join(lines) + "\n"
