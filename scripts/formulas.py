"""Formulas of docstrings, which are plain text, as LaTeX: `theta_i = sum_j w_ij theta_j'`.

A letter or a Greek name may have an index (`w_ij`, `S_-m`, `mean_{i in c}`), an exponent (`^2`,
`^(k)`), a prime, a hat (`what`, `Theta^_i`), a bar or a tilde. Every other name is upright.
"""

from __future__ import annotations

import re

LETTERS = "alpha|beta|delta|eta|mu|phi|rho|sigma|theta|xi|Delta|Theta"
LAMBDA = "\\lambda"
GREEK = {name: f"\\{name}" for name in LETTERS.split("|")}
GREEK |= {"eps": "\\varepsilon", "lam": LAMBDA, "lambda": LAMBDA}
ACCENTED = {"what": "\\hat{w}", "vbar": "\\bar{v}", "wbar": "\\bar{w}", "dW": "\\Delta W"}
OPERATORS = {
    "sum": "\\sum",
    "min": "\\min",
    "max": "\\max",
    "argmin": "\\operatorname{argmin}",
    "exp": "\\exp",
    "cos": "\\cos",
    "grad": "\\nabla",
    "d": "d",
}
SIGNS = {
    "<-": "\\leftarrow ",
    "<=": "\\le ",
    ">=": "\\ge ",
    "!=": "\\ne ",
    "||": "\\,\\|\\,",
    "~": "\\sim ",
    "*": "\\cdot ",
    "..": "\\ldots ",
    "{": "\\{",
    "}": "\\}",
    "%": "\\%",
}
# a name with its marks, a number, white space, or any other sign
TOKEN = re.compile(
    r"(?P<name>\d+|[A-Za-z]+\d*)(?P<hat>\^(?=_)|~(?=_))?"
    r"(?P<low>_\{[^}]*\}|_-?\w+)?(?P<high>\^\([^)]*\)|\^\{[^}]*\}|\^\w+)?(?P<prime>'+)?"
    r"|(?P<sign><-|<=|>=|!=|\|\||\.\.|[^\w\s])|(?P<gap>\s+)"
)
NUMBER = re.compile(r"\s{2,}\(([^()]*)\)(?:, ?(.*))?$")  # at the end of a line: the paper's number
WORDS = re.compile(r"(\\text\{[^{}]*)\} \\text\{")  # two words side by side
INLINE = re.compile(
    rf"\|[^|\n]{{1,40}}\|\^2|(?<![\w`^/])(?:[A-Za-z]\d?|sum|{'|'.join([*GREEK, *ACCENTED])})"
    r"(?:(?:_\{[^}]*\}|_-?[A-Za-z0-9]{1,3}\b)(?:\^\w+|\^\(\w\))?'?"
    r"|\^(?:2|FL|t|-1)\b|'(?=[ ,;:.)])(?!s))"
)


def display(lines: list[str]) -> str:
    """Lines of a formula as one block, each line with its number."""
    rows = []
    for line in lines:
        number = NUMBER.search(line)
        body = line[: number.start()] if number else line
        tag = f"\\qquad ({number[1]})" if number else ""
        note = f",\\;{latex(number[2])}" if number and number[2] else ""
        parts = re.split(r"(?<=\S)\s{2,}", body.strip())
        rows.append(" \\quad ".join(map(latex, parts)) + tag + note)
    block = " \\\\\n".join(rows)
    block = block if len(rows) == 1 else f"\\begin{{array}}{{l}}\n{block}\n\\end{{array}}"
    return f"$$\n{block}\n$$"


def inline(text: str) -> str:
    """Running text whose letters with an index or exponent are formulas."""
    return INLINE.sub(lambda found: f"${latex(found[0])}$", text)


def latex(text: str) -> str:
    """One formula."""
    found = "".join(map(_convert, TOKEN.finditer(text))).strip()
    while found != (joined := WORDS.sub(r"\1 ", found)):
        found = joined
    found = re.sub(r"(?<=\S) \\text\{", r"\\text{ ", found)
    return re.sub(r"\\text\{([^}]*)\} (?=[\w\\])", r"\\text{\1 }", found)


def _convert(token: re.Match[str]) -> str:
    if token["gap"]:
        return " "
    if token["sign"]:
        return SIGNS.get(token["sign"], token["sign"])
    letters, digits = re.fullmatch(r"([A-Za-z]*)(\d*)", token["name"]).groups()
    name = _name(letters) + (f"_{{{digits}}}" if letters and digits else digits)
    if token["hat"]:
        name = f"\\hat{{{name}}}" if token["hat"] == "^" else f"\\tilde{{{name}}}"
    low = token["low"] and _index(token["low"][1:].strip("{}"))
    high = token["high"] and latex(token["high"][1:].removeprefix("{").removesuffix("}"))
    marks = (f"_{{{low}}}" if low else "") + (token["prime"] or "")
    return name + marks + (f"^{{{high}}}" if high else "")


def _name(name: str) -> str:
    known = GREEK | ACCENTED | OPERATORS
    if name in known:
        return known[name] + (
            " " if known[name].startswith("\\") and "{" not in known[name] else ""
        )
    return name if len(name) < 2 else f"\\text{{{name}}}"


def _index(text: str) -> str:
    """An index: letters side by side are indices of their own, words are words."""
    if text in GREEK or not text.isalpha() or len(text) == 1:
        return latex(text)
    return text if len(text) == 2 else f"\\text{{{text}}}"
