r"""Rewrite an answer in the one spelling of LaTeX that the other modules read.

Unicode signs become commands (½, √2, x², π, ≤). Typesetting is removed (\left, \displaystyle, thin spaces, \text around
words), and so are markdown and mathematics delimiters around the whole. Short forms are completed (\frac12, \sqrt2).
The meaning of an answer is not decided here: two texts in this spelling may still be different forms.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱᵃᵇᶜᵈᵉᶠᵍʰʲᵏˡᵐᵒᵖʳˢᵗᵘᵛʷˣʸᶻ"
_LOWERED = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₒₓₕₖₗₘₙₚₛₜᵢⱼᵣᵤᵥ"
_SIGNS = {
    "−": "-", "⁻": "-", "₋": "-", "–": "-",
    "—": "-", "‐": "-", "‑": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ",
    "÷": "/",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∞": r"\infty ", "∪": r"\cup ",
    "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
    "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "…": r"\ldots ", "⋯": r"\ldots ", "∖": r"\setminus ",
    "′": "'", "″": "''", "’": "'", "“": '"', "”": '"', "∛": r"\sqrt[3]",
    "∜": r"\sqrt[4]", "⁄": "/", "℃": r"^\circ C", "℉": r"^\circ F", "º": r"^\circ ", "˚": r"^\circ ",
    "⩽": r"\le ", "⩾": r"\ge ", "≦": r"\le ", "≧": r"\ge ", "≡": r"\equiv ", "∗": "*", "∣": "|", "∠": r"\angle ",
    "∼": r"\sim ", "≃": r"\simeq ", "¢": " cents", "→": r"\to ",
    "√": r"\sqrt", "∨": r"\lor ", "∧": r"\land ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
    "⟨": "(", "⟩": ")",
    "Γ": r"\Gamma ", "Δ": r"\Delta ", "Θ": r"\Theta ", "Λ": r"\Lambda ", "Ξ": r"\Xi ", "Π": r"\Pi ", "Σ": r"\Sigma ",
    "Φ": r"\Phi ", "Ψ": r"\Psi ",
}  # fmt: skip
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma sigma tau upsilon "
    "phi chi psi omega"
)
_SIGNS |= {chr(0x3B1 + i): rf"\{name} " for i, name in enumerate(_GREEK_NAMES.split())}
_VULGAR = re.compile("([¼½¾⅐-⅞↉])")
_RAISED_ROOT = re.compile(r"(?<![\w)}\]])([³⁴])√")
"""A root whose degree is written with a raised digit. Behind a numeral that digit is an exponent."""
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_EMPHASIZED_PART = re.compile(r"(?<![^\s])(\*{1,3}|_{1,2})(?=\S)([^*_]+)(?<=\S)\1(?![^\s,.;])")
"""One or more words in markdown's emphasis: **5** dollars."""
_OVERLINED = re.compile("((?:[0-9]\u0305)+)")
"""Digits with a line over each of them, a repeating decimal's period."""
_BASE_WORDS = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}  # fmt: skip
_BASE_WORD = re.compile(
    rf"_\s*(?:\{{\s*\(?\s*(?:base\s+)?(\d+|{'|'.join(_BASE_WORDS)})\s*\)?\s*\}}|({'|'.join(_BASE_WORDS)})\b)",
    re.IGNORECASE,
)
_BASE_BEHIND = re.compile(
    rf"\A(\d\w*|[0-9A-F]+)\s*\(?\s*(?:in\s+)?base\s+(\d+|{'|'.join(_BASE_WORDS)})\s*\)?\Z", re.IGNORECASE
)
"""A numeral with its base in words: 101 (base 2)."""
_INCHES = re.compile(r"\A([+-]?[\d.,/ ]*\d)\s*(?:\"|'')\s*\Z")
_FEET = re.compile(r"\A([+-]?[\d.,/ ]*\d)\s*'\s*\Z")
_FEET_AND_INCHES = re.compile(r"\A(\d+)\s*'\s*(\d+(?:\.\d+)?)\s*(?:\"|'')\s*\Z")
_ARC_MINUTES = re.compile(r"(\d{1,9})\s*\^\\circ\s*(\d{1,2})\s*'(?!')(?:\s*(\d{1,2})\s*'')?")
"""An angle in degrees, minutes and seconds."""
_OPEN_INTERVAL = re.compile(r"([\[\]])([^\[\],;]+[,;][^\[\],;]+)([\[\]])")
_OPEN_INTERVALS = re.compile(rf"{_OPEN_INTERVAL.pattern}(?:\s*\\c[ua]p\s*{_OPEN_INTERVAL.pattern})*")
"""Intervals whose open ends have their brackets turned outwards: ]2, 3[."""
_EMPHASIS = ("***", "**", "__", "*", "_", "```", "`", '"', "'")
_INLINE = re.compile(r"(?<!\\)\$(?=\S)([^$]*?)(?<=\S)(?<!\\)\$(?!\d)")
"""Mathematics between dollar signs that are no currency, as Pandoc tells them apart: x = 1 of "$x = 1$ or $x = 2$"."""
_IN_PARENTHESES = re.compile(r"(?<!\\)\\\((.*?)\\\)")
r"""Mathematics between \( and \)."""
_HENCE = r"(?:so|thus|hence|therefore)"
_PREFIX = re.compile(
    rf"(?:{_HENCE}\s*,?\s+)?(?:the\s+)?(?:(?:final|correct|right)\s+)?answer\s*(?:is\s*:?|:|=)\s*|{_HENCE}\s*,\s+",
    re.IGNORECASE,
)
_HTML = re.compile(r"<(b|strong|i|em|u|mark)>(.*)</\1>", re.DOTALL | re.IGNORECASE)
_HEADING = re.compile(r"\A#{1,6}\s+")
_TYPESETTING = re.compile(
    r"\\(?:left|right|[bB]ig{1,2}[lrm]?|displaystyle|textstyle|small|large|Large|LARGE|huge|Huge|limits|nolimits|mathstrut|strut)(?![a-zA-Z])\s*\.?"
)
_THIN = re.compile(
    r"(?<=\d)\s*(?:\\[,!:;]|\\thinspace(?![a-zA-Z])|(?:\\!)?(?:,|\{,\})\\!|\{,\}|\{\\,\})\s*(?=\d{3}(?!\d))"
)
_SPACES = re.compile(r"(?<!\\)\\[,!:; >]|\\(?:quad|qquad|thinspace|hspace\{[^{}]*\}|hfill)(?![a-zA-Z])|~")
_GROUP = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
"""Content of braces, with two levels of braces inside."""
_TEXT = re.compile(rf"\\(?:text|textrm|textbf|textit|textnormal|textsf|texttt|mbox|hbox)\s*{_GROUP}")
UNIT_LETTERS = {
    "m": "meter", "s": "second", "g": "gram", "h": "hour", "l": "liter", "L": "liter", "in": "inch",
    "N": "newton", "J": "joule", "W": "watt", "V": "volt", "A": "ampere", "K": "kelvin", "C": "coulomb", "T": "tesla",
    "F": "farad",
}  # fmt: skip
"""Units of one letter, and "in", which are words and variables as well."""
_FONT = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathcal|boldsymbol|bm|rm|bf|underline|emph|ensuremath|operatorname\*?)\s*"
    + _GROUP
)
_SWITCH = re.compile(
    r"\\(?:(?:text)?color\s*(?:\[[^\[\]]*\])?\s*\{[^{}]*\}|(?:bf|rm|it|sf|tt|em|bfseries|itshape)(?![a-zA-Z])\s*(?!\{))"
)
"""Commands that change font or colour of what follows them."""
_NUMBER_SET = re.compile(r"\\(?:mathbb|Bbb)\s*\{?\s*([A-Z])(?![a-zA-Z])\s*\}?|(?<!.)\\mathbf\s*\{([RZ])\}(?!.)")
_OHMS = re.compile(r"(?<=\d)\s*([kM]?)(?:\\Omega|Ω)\s*\Z")
_MICRO = re.compile(r"(?<=\d)\s*\\mu\s*([mgsFAlLC])\s*\Z")
_CIS = re.compile(
    r"(?<![a-zA-Z\\])cis\s*(?:\(([^()]*)\)|\{([^{}]*)\}|"
    r"((?:\\frac\{[^{}]*\}\{[^{}]*\}|\d+(?:\.\d+)?|\\[a-z]+)(?:\s*\^\\circ)?))"
)
r"""cos t + i sin t, written cis t."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_COMMANDS = {
    r"dfrac tfrac cfrac nicefrac sfrac": r"\frac",
    r"varepsilon": r"\epsilon ",
    r"varphi": r"\phi ",
    r"bmod": r"\mod ",
    r"dbinom tbinom": r"\binom",
    r"leq leqslant leqq": r"\le ",
    r"geq geqslant geqq": r"\ge ",
    r"neq": r"\ne ",
    r"lt": "<",
    r"gt": ">",
    r"dots cdots dotsc dotsb": r"\ldots ",
    r"varnothing O empty": r"\emptyset ",
    r"backslash smallsetminus": r"\setminus ",
    r"imath jmath": "i",
    r"degree textdegree": r"^\circ ",
    r"cdotp ast": r"\cdot ",
    r"div": "/",
    r"langle": "(",
    r"rangle": ")",
    r"lbrace": r"\{",
    r"rbrace": r"\}",
    r"lvert rvert vert": "|",
    r"wedge": r"\land ",
    r"bigcup": r"\cup ",
    r"bigcap": r"\cap ",
    r"vee": r"\lor ",
    r"percent": r"\%",
    r"lg": r"\log_{10} ",
}
"""Commands with the same meaning, and their spelling here."""
_ONE_SPELLING = {rf"\{name}": spelling for names, spelling in _COMMANDS.items() for name in names.split()}
_COMMAND = re.compile(rf"\\(?:{'|'.join(name for names in _COMMANDS for name in names.split())})(?![a-zA-Z])")
_SHORT_FORMS = (
    (re.compile(r"\\not\s*(?:=|\\eq(?![a-zA-Z]))"), r"\\ne "),
    (re.compile(r"\+/-"), r"\\pm "),
    (re.compile(r"(?<=\s)\|\|(?=\s)"), "or"),
    (re.compile(r"(?<=\s)&&(?=\s)"), "and"),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r" \\times "),
    (re.compile(r"\bper cent\b", re.IGNORECASE), "percent"),
    (re.compile(r"(\\mathbb\{[A-Z]\}|[)\]])\s*-\s*(?=\\\{)"), r"\1 \\setminus "),
    (re.compile(r"(?<![a-zA-Z\\])abs\(([^()]*)\)"), r"|\1|"),
    (re.compile(r"(?<![a-zA-Z\\])(floor|ceil)\(([^()]*)\)"), r"\\l\1 \2 \\r\1 "),
    (re.compile(r"(?<![\w.}\\])(\d{1,4}) ?C ?(\d{1,4})(?![\w.]|\s+_)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\log\s*_(\d)(?=\d)"), r"\\log_{\1} "),
    (re.compile(r"(?<=\d)\s+and\s+(?:a|one)\s+half\b", re.IGNORECASE), " 1/2"),
    (re.compile(r"(?<=\d)\s+and\s+(?:a|one)\s+quarter\b", re.IGNORECASE), " 1/4"),
    (re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])"), r" \\cup "),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(r"!="), r"\\ne "),
    (re.compile(r"\.\.\."), r"\\ldots "),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}"), r"^\\circ "),
    (re.compile(r"_\s*(\d)(?=\s)"), r"_{\1}"),
    (re.compile(r"(?<![\\])%"), r"\\%"),
    (re.compile(r"(?<![a-zA-Z\\])(?:sqrt)\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])sqrt(?=[\d{])"), r"\\sqrt"),
    (re.compile(r",\s*and(?=\s)"), " and "),
    (re.compile(r",\s*or(?=\s)"), " or "),
    (re.compile(r"\\dot\s*\{(\d)\}\s*(\d*)\s*\\dot\s*\{(\d)\}"), r"\\overline{\1\2\3}"),
    (re.compile(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])"), r"\\pi "),
    (re.compile(r"(?<![a-zA-Z\\])(?:[iI]nfinity|inf|oo)(?![a-zA-Z])"), r"\\infty "),
    (
        re.compile(
            r"(?<![a-zA-Z\\])(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp)(?=[\s(\\{^\d])"
        ),
        r"\\\1 ",
    ),
    (re.compile(r"(?<![a-zA-Z\\])(max|min|gcd|lcm)\s*(?=\()"), r"\\\1"),
)
"""Texts without a command, and the command for each. The order matters: a later pattern may match an earlier result."""
_GREEK = r"\\(?:pi|alpha|beta|gamma|delta|theta|lambda|mu|phi|omega)(?![a-zA-Z])"
_SHORT_FRACTION = re.compile(
    rf"\\frac(?:\s*(\d|{_GREEK})|\s+([a-zA-Z])|\s*{_GROUP})\s*(?:([\da-zA-Z]|{_GREEK})|{_GROUP})(?!\{{)"
)
_COMBINATIONS = re.compile(r"(?:\{\}\s*)?(?<![\w)\]])(?<!\w\})[\^_]\{?(\d+)\}?\s*C_\{?(\d+)\}?")
_MODULUS = re.compile(r"\s*(?:\\pmod\s*(?:\{\s*(\w+)\s*\}|(\w))|\(\s*\\?mod\s*(\w+)\s*\))")
_SHORT_BINOMIAL = re.compile(r"\\binom\s*(\d)\s*(\d)")
_REALS = re.compile(r"(?:the\s+set\s+of\s+)?(?:all|any)\s+(?:the\s+)?real(?:s|\s+numbers?)(?:\s+x)?", re.IGNORECASE)
_REALS_EXCEPT = re.compile(
    rf"(?:{_REALS.pattern})\s*,?\s+(?:except|other\s+than|but)(?:\s+for)?\s+(?:x\s*=\s*)?(.+)", re.IGNORECASE
)
_EMPTY = re.compile(
    r"(?:the\s+)?(?:empty|null)\s+set|(?:there\s+(?:is|are)\s+)?no\s+(?:real\s+)?solutions?", re.IGNORECASE
)
_ENVIRONMENT = re.compile(
    r"(?:\\\{\s*\\begin\{(array|aligned)\}(?:\{[^{}]*\})?"
    r"|\\begin\{(cases|aligned|align\*?|gathered|gather\*?|equation\*?|split)\})(.*)\\end\{(?:\1|\2)\}",
    re.DOTALL,
)
"""Lines of equations."""
_GROUPED = re.compile(r"(?<![\w,.^_}\\])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_TIME = re.compile(r"(1[0-2]|0?[1-9])(?:\s*:\s*([0-5]\d))?\s*([ap])\.?\s?m\.?", re.IGNORECASE)
"""A time of day on a clock of twelve hours: 10 a.m., 7:30 PM."""
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d+(?:\.\d+)?|[a-zA-Z]|\\(?!frac|binom|sqrt)[a-zA-Z]+)")
_ROOT_OF_FRACTION = re.compile(rf"\\sqrt\s*(\[[^\[\]]*\])?\s*(\\frac{_GROUP}{_GROUP})")
_ROOT_OF_PARENTHESES = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*\(([^()]*)\)")
_PYTHON_POWER = re.compile(r"\*\*\s*(?:\(([^()]*)\)|([+-]?[\w.]+))")
_POWER_OF_PARENTHESES = re.compile(r"\^\s*\(([^()]*)\)")


def spelt(text: str) -> str:
    """Return a text in one spelling. Equal results mean equal answers; different results do not yet mean different
    answers."""
    text = unwrapped(_unicode(_EMPHASIZED_PART.sub(r"\2", unwrapped(text))))
    text = unwrapped(_IN_PARENTHESES.sub(r" \1 ", _INLINE.sub(r" \1 ", text)))
    text = re.sub(r"\A(?:minus|negative)\s+(?=[\d.\\$])", "-", text, flags=re.IGNORECASE)
    text = re.sub(r"\A~\s*(?=[\d.\\])", r"\\approx ", text)
    for _ in range(3):  # a text within a text
        text = _TEXT.sub(_plain_text, text)
    text = _NUMBER_SET.sub(lambda m: rf"\mathbb{{{m[1] or m[2]}}}", text)
    text = _FONT.sub(_plain_text, text)
    text = _SWITCH.sub("", text)
    text = _TYPESETTING.sub(_typesetting, text)
    text = _THIN.sub("", text)
    text = _SPACES.sub(" ", text)
    text = _PYTHON_POWER.sub(lambda m: f"^{{{m[1] or m[2]}}}", text)
    text = _COMMAND.sub(lambda m: _ONE_SPELLING[m[0]], text)
    for pattern, replacement in _SHORT_FORMS:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<=[\w)}\s])\*(?=[\w({\\\s])", r"\\cdot ", text)
    text = _ROOT_OF_PARENTHESES.sub(lambda m: f"\\sqrt{m[1] or ''}{{{m[2]}}}", text)
    text = _SHORT_ROOT.sub(lambda m: f"\\sqrt{m[1] or ''}{{{m[2]}}}", text)
    text = _SHORT_FRACTION.sub(_whole_fraction, text)
    text = _ROOT_OF_FRACTION.sub(lambda m: f"\\sqrt{m[1] or ''}{{{m[2]}}}", text)
    text = _SHORT_BINOMIAL.sub(r"\\binom{\1}{\2}", text)
    text = re.sub(r"\^([+-](?:\d+|[a-zA-Z]))", r"^{\1}", text)
    text = _POWER_OF_PARENTHESES.sub(r"^{\1}", text)
    text = re.sub(r"\s+(?=[\^_])", "", text)
    text = _FEET_AND_INCHES.sub(r"\1 feet \2 inches", _ARC_MINUTES.sub(_in_degrees, text))
    text = _INCHES.sub(r"\1 inches", _FEET.sub(r"\1 feet", text))
    text = _MICRO.sub(r" micro\1", _OHMS.sub(r" \1ohm", text))
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])|\bcis\b", text):
        text = re.sub(r"(?<=[\d}])\s*degrees?\b", r"^\\circ ", text)
    text = _CIS.sub(lambda m: r"(\cos({0}) + i\sin({0}))".format(m[1] or m[2] or m[3]), text)
    text = _BASE_BEHIND.sub(r"\1_{\2}", text.strip())
    text = _BASE_WORD.sub(_base_in_digits, text)
    text = _COMBINATIONS.sub(r"\\binom{\1}{\2}", text)
    text = re.sub(r"\\(max|min|gcd|lcm)\s*\\\{([^{}]*)\\\}", r"\\\1(\2)", text)
    text = _MODULUS.sub(lambda m: rf" \pmod{{{m[1] or m[2] or m[3]}}}", text)
    if _OPEN_INTERVALS.fullmatch(text.strip()):
        text = _OPEN_INTERVAL.sub(_facing_inwards, text)
    text = _in_one_line(unwrapped(" ".join(text.split())))
    if _REALS.fullmatch(text):
        return r"\mathbb{R}"
    if exception := _REALS_EXCEPT.fullmatch(text):
        return rf"\mathbb{{R}} \setminus \{{{exception[1].replace(' and ', ', ')}\}}"
    if _EMPTY.fullmatch(text):
        return r"\emptyset"
    if text.upper() == "DNE":
        return "does not exist"
    if text.casefold() in ("noon", "midnight"):
        return "12:00 pm" if text.casefold() == "noon" else "12:00 am"
    if clock := _TIME.fullmatch(text):
        return f"{int(clock[1])}:{clock[2] or '00'} {clock[3].lower()}m"
    return text


def undelimited(text: str) -> str:
    """Return a text without the delimiters of mathematics around the whole."""
    for left, right in _DELIMITERS:
        inner = text[len(left) : len(text) - len(right)]
        is_around = len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right)
        if is_around and "$" not in inner and left not in inner:
            text = inner.strip()
    return text


def unwrapped(text: str) -> str:
    """Return a text without its presentation: delimiters, a box, emphasis, "The answer is", a full stop."""
    while True:
        before = text
        text = _HEADING.sub("", text.strip())
        if text.endswith("\\") and not text.endswith("\\\\"):  # strip() has removed the space of LaTeX's "\ "
            text = text[:-1]
        text = undelimited(text)
        for mark in _EMPHASIS:
            inner = text[len(mark) : len(text) - len(mark)]
            if text.startswith(mark) and text.endswith(mark) and inner.strip() and mark not in inner:
                text = inner.strip()
        if (m := _BOX.fullmatch(text)) and _balanced(m[1]):
            text = m[1].strip()
        if m := _HTML.fullmatch(text):
            text = m[2].strip()
        text = _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text
        if text.endswith((".", ",", ";")) and not text.endswith(("..", "\\,", "\\;")):
            text = text[:-1]
        if text == before:
            return text


def without_grouping(text: str) -> str:
    """Return a spelt text without the commas between groups of three digits: 1,000x, but not (1,234) or x^{1,234}.

    Between brackets a comma is a separator, unless another one with a blank separates the items: (1,000, 2,000).
    """

    def joined(match: re.Match[str]) -> str:
        before = text[: match.start()]
        depth = len(re.findall(r"[(\[]|\\\{", before)) - len(re.findall(r"[)\]]|\\\}", before))
        is_argument = re.search(r"(?:[a-zA-Z]|\})\{$", before)
        is_item = re.search(r"[,;]\s+[+-]?\s*$", before) or re.match(r"\s*[,;]\s", text[match.end() :])
        is_number = is_item or is_argument or ",0" in match[0] or (depth == 0 and not before.endswith("{"))
        return match[0].replace(",", "") if is_number else match[0]

    return _GROUPED.sub(joined, text)


def _in_one_line(text: str) -> str:
    """Return lines of equations as a list. Lines that begin with "=" go on, and what has cases stays as it is."""
    environment = _ENVIRONMENT.fullmatch(text)
    if environment is None:
        return text
    body = re.sub(r"&\s*(?=[=<>]|\\[lg]e(?![a-zA-Z]))", "", environment[3])
    if "&" in body:
        return text
    lines = [line.strip().rstrip(",;") for line in body.split(r"\\") if line.strip()]
    return re.sub(r", =", " =", ", ".join(lines))


def compact(text: str) -> str:
    """Return a spelt text without white space that separates nothing, for comparing texts."""
    return re.sub(r"(?<![a-zA-Z0-9.])\s+|\s+(?![a-zA-Z0-9.])", "", text)


def _balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text, re.DOTALL):
        depth += (brace == "{") - (brace == "}")
        if depth < 0:
            return False
    return depth == 0


def _facing_inwards(match: re.Match[str]) -> str:
    """Return an interval with round brackets at its open ends."""
    opening = "[" if match[1] == "[" else "("
    closing = "]" if match[3] == "]" else ")"
    return f"{opening}{match[2]}{closing}"


def _in_degrees(match: re.Match[str]) -> str:
    """Return an angle of degrees, minutes and seconds in degrees."""
    angle = int(match[1]) + Fraction(int(match[2]), 60) + Fraction(int(match[3] or "0"), 3600)
    return rf"\frac{{{angle.numerator}}}{{{angle.denominator}}}^\circ "


def _base_in_digits(match: re.Match[str]) -> str:
    base = match[1] or match[2]
    return f"_{{{_BASE_WORDS.get(base.lower(), base)}}}"


def _unicode(text: str) -> str:
    text = _RAISED_ROOT.sub(lambda m: {"³": "∛", "⁴": "∜"}[m[1]], text)
    text = _OVERLINED.sub(lambda m: f"\\overline{{{m[1].replace(chr(0x305), '')}}}", text)
    text = _VULGAR.sub(lambda m: _vulgar(m[1]), text)
    text = re.sub(f"[{_RAISED}]+", r"^{\g<0>}", text)
    text = re.sub(f"[{_LOWERED}]+", r"_{\g<0>}", text)
    text = "".join(_SIGNS.get(c, c) for c in text)
    return unicodedata.normalize("NFKC", text)


def _vulgar(sign: str) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", sign).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _plain_text(match: re.Match[str]) -> str:
    """Return the content of \\text and similar commands.

    After a number a unit of one letter is spelt out, because it would be read as a factor.
    """
    content = match[1].replace("~", " ")
    before = match.string[: match.start()].rstrip()
    after = match.string[match.end() :]
    is_factor = bool(re.match(r"\s*[\w({]", after))  # the C of _6\mathrm{C}_3
    if content.strip().isupper() and content.strip() != "L":
        # A capital is a matrix, a set or a digit more often than a unit: 2\mathbf{A} + \mathbf{B}
        is_factor = is_factor or match[0].startswith(r"\mathbf") or not re.match(r"\s*(?:\Z|[,;.$])", after)
    if before.endswith((*"0123456789)}", "/")) and content.strip() in UNIT_LETTERS and not is_factor:
        return f" {UNIT_LETTERS[content.strip()]} "
    return f" {content} " if "text" in match[0][:6] or "box" in match[0][:6] else content


def _typesetting(match: re.Match[str]) -> str:
    """Keep a full stop that is a decimal point. Only that of \\left. and \\right. belongs to the command."""
    name = match[0].rstrip(". ")
    return "" if name in (r"\left", r"\right") or not match[0].endswith(".") else "."


def _whole_fraction(match: re.Match[str]) -> str:
    parts = (match[1] or match[2] or match[3] or "", match[4] or match[5] or "")
    top, bottom = (_SHORT_FRACTION.sub(_whole_fraction, part) for part in parts)
    return rf"\frac{{{top}}}{{{bottom}}}"
