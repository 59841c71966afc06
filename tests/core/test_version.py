"""One version, wherever it is written."""

import re
from pathlib import Path

import coterie

ROOT = Path(__file__).parents[2]


def test_the_newest_entry_of_the_changelog_is_this_version():
    entries = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert entries[0][0] == coterie.__version__


def test_the_citation_names_the_version_and_date_of_the_changelog():
    said = dict(
        re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    )
    entries = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert (said["version"], said["date-released"]) == entries[0]
