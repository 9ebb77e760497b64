"""Lines of a width."""


def wrap(text, width, first="", rest=""):
    """Lines of at most `width`, `first` before the first and `rest` before the others. A word that is too long is cut."""
    if width <= max(len(first), len(rest)):
        raise ValueError(f"a width of {width} has no room for text")
    lines, line = [], first
    start = True
    for word in text.split():
        while True:
            room = width - len(line) - (0 if start else 1)
            if len(word) <= room:
                line += word if start else " " + word
                start = False
                break
            if start:
                line, word = line + word[:room], word[room:]
                if not word:
                    start = False
                    break
            lines.append(line)
            line, start = rest, True
    if not start or not lines:
        lines.append(line)
    return lines if text.split() else []


def fill(text, width):
    """Paragraphs, which an empty line separates, each wrapped."""
    paragraphs = [p for p in text.split("\n\n") if p.strip()]
    return "\n\n".join("\n".join(wrap(p, width)) for p in paragraphs)


def justify(line, width):
    """Spaces between words grow, the left ones first, until the line has its width; a single word stays."""
    words = line.split()
    if len(words) < 2:
        return line.strip()
    gaps = len(words) - 1
    spaces = width - sum(len(word) for word in words)
    if spaces < gaps:
        raise ValueError(f"the line does not fit into {width}")
    each, more = divmod(spaces, gaps)
    result = words[0]
    for i, word in enumerate(words[1:]):
        result += " " * (each + (1 if i < more else 0)) + word
    return result


def indent(text, prefix, skip_empty=True):
    lines = text.split("\n")
    return "\n".join(prefix + line if line.strip() or not skip_empty else line for line in lines)


def dedent(text):
    """Without the spaces that all lines with text begin with."""
    lines = text.split("\n")
    margins = [len(line) - len(line.lstrip(" ")) for line in lines if line.strip()]
    margin = min(margins, default=0)
    return "\n".join(line[margin:] if line.strip() else "" for line in lines)


def shorten(text, width, mark="..."):
    """White space becomes single spaces; what is too long ends after a word, with `mark`."""
    words = text.split()
    whole = " ".join(words)
    if len(whole) <= width:
        return whole
    kept = ""
    for word in words:
        longer = f"{kept} {word}" if kept else word
        if len(longer) + len(mark) > width:
            break
        kept = longer
    if not kept:
        return mark[:width]
    return kept + mark
