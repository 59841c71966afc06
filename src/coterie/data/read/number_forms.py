"""Numbers as people write them: decimal commas, groups of thousands, units, percents, currencies.

A column has one form, which is spelled by an example, as in `€ 1.234,5`, `1234.5 kg` or `1,234.5`.
Later rows are read in the form of training and in no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import polars as pl

POINT, COMMA = ".", ","
OPEN = "thousands or decimals"  # the marks in a column may be either
MIXED = "mixed units: "  # the units of a column that is left as text
MOST_UNITS = 3  # more units in a column are no units: it holds names such as 12A and 14C
SAMPLE = 1000  # cells that tell whether a column may hold numbers at all
CODES = "EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|RON|BRL|MXN|ZAR|KRW|TRY"
UNIT = (
    r"[\p{L}\p{Sc}%‰°][^\s,;:()\[\]\"']{0,11}(?: [\p{L}%/][^\s,;:()\[\]\"']{0,9})?"  # fl oz, kg/m2
)
BODY = r"[0-9]{1,3}(?:[ '][0-9]{3})+(?:[.,][0-9]+)?|[0-9.,]*[0-9]"
CELL = (
    rf"^(?<sign>[+-]?) ?(?<before>\p{{L}}{{0,3}}\p{{Sc}}|{CODES})? ?(?<minus>-?) ?"
    rf"(?<body>{BODY})(?<power>[eE][+-]?[0-9]+)? ?(?<after>{UNIT})?$"
)
FORM = re.compile(
    r"^(?:(?P<before>.+?) )?1(?P<group>[.,' ]?)234(?P<mark>[.,])5(?: (?P<after>.+))?$"
)


class NumberForm(NamedTuple):
    """How the numbers of a column are written."""

    decimal: str = POINT
    group: str = ""  # between thousands
    unit: str = ""
    first: bool = False  # whether the unit stands before the number

    def __str__(self) -> str:
        """The number 1234.5 in this form; "" for plain numbers."""
        number = f"1{self.group}234{self.decimal}5"
        parts = (self.unit, number) if self.first else (number, self.unit)
        return "" if self == NumberForm() else " ".join(filter(None, parts))


GROUPED, GROUPED_COMMAS = NumberForm(POINT, COMMA), NumberForm(COMMA, POINT)


class FoundForm(NamedTuple):
    """What the cells of a column say."""

    form: NumberForm | None  # None: they have several units
    # the mark of fractions that the cells themselves show; "": none is seen, OPEN: it may be either
    shown: str = ""
    units: tuple[str, ...] = ()  # "": none


def parse_form(text: str) -> NumberForm | None:
    """A form as it is spelled; None where the text spells none (a date)."""
    if text == COMMA:  # as runs of earlier versions have it
        return NumberForm(COMMA)
    found = FORM.match(text)
    if found is None:
        return None
    before, after = found["before"] or "", found["after"] or ""
    return NumberForm(found["mark"], found["group"], before or after, bool(before))


def find_form(cells: pl.Series) -> FoundForm | None:
    """The form that most cells have; None where they are no numbers."""
    found = cells.drop_nulls()
    if not _is_number(found.gather_every(max(1, found.len() // SAMPLE))).any():
        return None
    table = _cut(found)
    table = table.filter(_fits(table["body"], GROUPED_COMMAS) | _fits(table["body"], GROUPED))
    if 2 * table.height < found.len():
        return None
    units = _units_of(table)
    if len(units) != 1:
        return FoundForm(None, units=units) if len(units) <= MOST_UNITS else None
    points, commas = (int(_fits(table["body"], form).sum()) for form in (GROUPED, GROUPED_COMMAS))
    if points != commas:
        shown = POINT if points > commas else COMMA
    else:
        shown = OPEN if bool(table["body"].str.contains("[.,]").any()) else ""
    return FoundForm(_form_of(table, COMMA if shown == COMMA else POINT, units[0]), shown, units)


def settle(found: FoundForm, cells: pl.Series, decimal: str) -> NumberForm | None:
    """The form of cells that show no mark of fractions, or show one that may be either.

    decimal: the mark of other columns or of the user; "": unknown. A comma before three digits in
    all cells separates thousands then, and a point is the usual one.
    """
    if found.form is None or found.shown != OPEN or decimal in ("", POINT):
        return found.form
    return _form_of(_cut(cells.drop_nulls()), decimal, found.units[0])


def parse_numbers(cells: pl.Series, form: NumberForm) -> pl.Series:
    """Numbers in this form; what is none is missing."""
    parts = _cut(cells)
    unit = _key(form.unit)
    seen = parts["unit"].fill_null("")
    keys = {text: _key(text) == unit for text in seen.unique()}
    good = seen.replace_strict(list(keys), list(keys.values()), return_dtype=pl.Boolean)
    good &= _fits(parts["body"], form).fill_null(False)
    other = [mark for mark in (POINT, COMMA, "'", " ") if mark != form.decimal]
    body = parts["body"]
    for mark in other:
        body = body.str.replace_all(mark, "", literal=True)
    body = body.str.replace(form.decimal, POINT, literal=True)
    values = (parts["sign"] + body + parts["power"]).cast(pl.Float64, strict=False)
    return values.set(~good, None).alias(cells.name)


def parse_plain_numbers(cells: pl.Series) -> pl.Series:
    """Numbers as programs write them; what is none is missing."""
    return cells.str.replace("−", "-", literal=True).cast(pl.Float64, strict=False)


def _is_number(cells: pl.Series) -> pl.Series:
    return _tidy(cells).str.contains(CELL)


def _tidy(cells: pl.Series) -> pl.Series:
    """One kind of blank, apostrophe and minus."""
    cells = cells.str.replace_all("[\u00a0\u2009\u202f\t]", " ")
    return cells.str.replace_all("[’ʼ]", "'").str.replace_all("−", "-", literal=True)


def _cut(cells: pl.Series) -> pl.DataFrame:
    """Sign, body, power and unit of every cell; a cell that is no number has none."""
    parts = _tidy(cells).str.extract_groups(CELL).struct.unnest()
    one = (pl.col("sign") == "") | (pl.col("minus") == "")  # no -$-3
    one &= (pl.col("before").is_null()) | (pl.col("after").is_null())
    sign = pl.concat_str("sign", "minus").str.strip_chars("+")
    return parts.select(
        body=pl.when(one).then("body"),
        sign=sign,
        power=pl.col("power").fill_null(""),
        unit=pl.coalesce("before", "after"),
        first=pl.col("before").is_not_null(),
    )


def _fits(bodies: pl.Series, form: NumberForm) -> pl.Series:
    """Whether digits are written with these marks.

    Groups need a mark of their own; where the form has none, that of the point or comma alone does
    not suffice: 1.200 is no number of the form 1234,5, but 1.200,5 is.
    """
    mark, other = re.escape(form.decimal), "," if form.decimal == POINT else "."
    alone = "' " + (form.group if form.group in (POINT, COMMA) else "")
    patterns = (
        rf"[0-9]*{mark}[0-9]+|[0-9]+",
        rf"[1-9][0-9]{{0,2}}(?:[{alone}][0-9]{{3}})+",
        rf"[1-9][0-9]{{0,2}}(?:[{other}' ][0-9]{{3}})+{mark}[0-9]+",
        rf"[1-9][0-9]{{0,2}}(?:[{other}][0-9]{{3}}){{2,}}",
    )
    return bodies.str.contains(rf"^(?:{'|'.join(patterns)})$")


def _form_of(table: pl.DataFrame, mark: str, unit: str) -> NumberForm:
    """The form of cells that have this mark of fractions."""
    like = GROUPED_COMMAS if mark == COMMA else GROUPED
    bodies = table["body"].filter(_fits(table["body"], like).fill_null(False))
    groups = bodies.str.extract(rf"([{like.group}' ])").drop_nulls()
    group = "" if groups.is_empty() else str(groups.mode().sort()[0])
    return NumberForm(mark, group, unit, bool(table["first"].any()))


def _units_of(table: pl.DataFrame) -> tuple[str, ...]:
    """The units of the cells, the commonest first; kg, KG and 1 day, 2 days are one each."""
    counts = table["unit"].fill_null("").value_counts(sort=True)
    known: dict[str, str] = {}
    for unit in counts["unit"].head(50 * MOST_UNITS):
        known.setdefault(_key(unit), unit)
    return tuple(known.values())


def _key(unit: str) -> str:
    """What units have in common that are the same; mW and MW are not."""
    lower = unit.casefold()
    lower = lower.removesuffix("s") if len(lower) > 2 else lower
    return unit[0] + lower[1:] if lower[:1] in ("m", "p") else lower


class Written(Protocol):
    """A column, as far as its texts go."""

    @property
    def name(self) -> str: ...
    @property
    def form(self) -> str: ...
    @property
    def note(self) -> str: ...


def describe_forms(columns: Iterable[Written]) -> list[str]:
    """What there is to say of how the numbers of a table are written, a line each."""
    forms = {c.name: (parse_form(c.form), c.note) for c in columns}
    held = {name: (form, note) for name, (form, note) in forms.items() if form is not None}
    commas = [name for name, (form, _) in held.items() if form.decimal == COMMA]
    units = [f"{name} in {form.unit}" for name, (form, _) in held.items() if form.unit]
    groups = [n for n, (form, note) in held.items() if form.group and note != OPEN]
    lines = [f"decimal commas in {_list(commas)}"] if commas else []
    if units:
        lines.append(f"numbers with units: {_list(units)}; --categories keeps a column as text")
    lines += [f"thousands are in groups in {_list(groups)}"] if groups else []
    opens = [(name, form.group) for name, (form, note) in held.items() if note == OPEN]
    for cell, grouped, read, otherwise in (
        ("1,200", True, "1200", "1.2"),
        ("1.200", False, "1.2", "1200"),
    ):
        these = [name for name, group in opens if bool(group) == grouped]
        if these:
            lines.append(
                f"{cell} in {_list(these)} is read as {read}; --decimal , makes it {otherwise}"
            )
    for name, (_, note) in forms.items():
        if note.startswith(MIXED):
            lines.append(
                f"'{name}' has {note}: left as text; write one unit in the file, or --drop {name}"
            )
    return lines


def _list(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
