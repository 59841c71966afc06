#!/usr/bin/env bash
# Build the wheel, install it into an environment of its own, and compare methods with it outside the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m build --quiet --outdir "$place/dist"
"$python" -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet -c constraints.txt torch  # first, so that nothing else chooses another build
"$place/venv/bin/pip" install --quiet -c constraints.txt "$place"/dist/*.whl
cd "$place"
"$place/venv/bin/coterie" compare --config demo --rounds 3 --quiet --out compared
test -s compared/report.html
"$place/venv/bin/python" - <<'CHECK'
from importlib.resources import files

from coterie.engines.local.native.compiler import HEADERS, read_header
from coterie.lab.papers.paper_tables import read_papers

assert len(read_papers()) > 50, "the papers' tables are missing"
names = {f.name for room in ("reports", "ui") for f in (files("coterie") / room / "assets").iterdir()}
assert any(n.endswith(".css") for n in names) and any(n.endswith(".js") for n in names), names
assert all(map(read_header, (*HEADERS, "run.h"))), "C of the machine code is missing"
assert (files("coterie") / "py.typed").is_file(), "the types are not marked"
CHECK
echo "the wheel $(basename "$place"/dist/*.whl) works on its own"
