"""Pieces of Python that the demo model's cells begin with: reading texts and tables as they come."""

from typing import Final

READ_TEXT: Final = '''\
def read_text(path):
    """A text in UTF-8, UTF-16 or Latin-1; None for a binary file."""
    data = open(path, "rb").read()
    if data[:2] in (b"\\xff\\xfe", b"\\xfe\\xff"):
        return data.decode("utf-16", "replace")
    if b"\\0" in data[:8192]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")
'''

READ_TABLE: Final = '''\
import csv, io, json

def read_table(path):
    """The records of a CSV, TSV, JSON or JSON-lines file as dicts."""
    text = read_text(path) or ""
    start = text.lstrip()[:1]
    if start in ("[", "{"):
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        if isinstance(found, dict):
            lists = [value for value in found.values() if isinstance(value, list)]
            found = lists[0] if lists else [found]
        return [row if isinstance(row, dict) else {"value": row} for row in found]
    lines = [line for line in text.splitlines() if line.strip()]
    head = lines[0] if lines else ""
    delimiter = max(",;\\t|", key=head.count)
    rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    names = [name or f"column {i + 1}" for i, name in enumerate(rows[0])] if rows else []
    return [dict(zip(names, row + [""] * len(names))) for row in rows[1:]]
'''

NUMBER: Final = '''\
import re

def number(value, comma=False):
    """A cell as a number: 1,234.50, 1.234,50, $12, 7 % and 3 kg are understood; None when it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return value
    match = re.fullmatch(r"[^\\d+-]{0,4}([+-]?\\d[\\d.,' \\u00a0]*)[^\\d]{0,12}", str(value).strip())
    if not match or re.search(r"\\d-\\d", str(value)):
        return None
    digits = re.sub(r"[' \\u00a0]", "", match.group(1)).rstrip(".,")
    if comma or re.fullmatch(r"[+-]?\\d{1,3}(\\.\\d{3})+,\\d+", digits):
        digits = digits.replace(".", "").replace(",", ".")
    else:
        digits = digits.replace(",", "")
    try:
        return float(digits) if "." in digits else int(digits)
    except ValueError:
        return None

def numbers_of(rows, column):
    """The numbers of a column, empty and other cells left out."""
    cells = [row.get(column) for row in rows]
    comma = any(re.fullmatch(r"\\D*\\d+,\\d{1,2}\\D*", str(cell)) for cell in cells) and not any("." in str(cell) for cell in cells)
    return [value for value in (number(cell, comma) for cell in cells) if value is not None]
'''

SHOW: Final = '''\
def show(value):
    """A number for people."""
    if isinstance(value, float):
        value = int(value) if value == int(value) and abs(value) < 1e15 else round(value, 4)
    return f"{value:,}" if isinstance(value, int) else str(value)
'''

LOOK_AT_TABLE: Final = """\
rows = read_table(path)
columns = list(dict.fromkeys(name for row in rows[:1000] for name in row))
look = {}
for column in columns:
    values = [row.get(column) for row in rows]
    filled = [value for value in values if value not in ("", None)]
    numeric = len(numbers_of(rows, column))
    kinds = sorted({str(value) for value in filled}) if len({str(value) for value in filled}) <= 40 else []
    look[column] = {"numbers": bool(filled) and numeric >= 0.8 * len(filled), "values": kinds}
print(f"{len(rows)} records, columns: {', '.join(columns)}")
for row in rows[:3]:
    print(row)
print("TABLE " + json.dumps({"rows": len(rows), "columns": look}))
"""


def joined(*pieces: str) -> str:
    """Pieces of code one after the other."""
    return "\n".join(piece.strip("\n") + "\n" for piece in pieces).strip("\n")
