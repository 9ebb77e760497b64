"""Tables and columns of text."""


def _cell(value, width, align):
    text = str(value)
    if align == "right":
        return text.rjust(width)
    if align == "center":
        left = (width - len(text)) // 2
        return (" " * left + text).ljust(width)
    return text.ljust(width)


def table(rows, align=None, header=True, gap=2):
    """Rows as lines of aligned columns; below a header stands a line of dashes. `align`: left, right or center for each column."""
    if not rows:
        return []
    count = max(len(row) for row in rows)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(str(row[i])) for row in full) for i in range(count)]
    align = align or ["left"] * count
    lines = [(" " * gap).join(_cell(row[i], widths[i], align[i]) for i in range(count)).rstrip() for row in full]
    if header:
        lines.insert(1, (" " * gap).join("-" * width for width in widths))
    return lines


def columns(items, width, gap=2):
    """Items down, then across, in as many equal columns as `width` has room for."""
    if not items:
        return []
    size = max(len(item) for item in items)
    count = max(1, (width + gap) // (size + gap))
    height = -(-len(items) // count)
    lines = []
    for row in range(height):
        found = items[row::height]
        lines.append((" " * gap).join(item.ljust(size) for item in found).rstrip())
    return lines
