"""The picture of a demo, from the folder of its comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.lab.demos.stories import Story
from coterie.reports.gather import gather_evidence


def draw_story(story: Story, folder: Path) -> Any:
    """What to look at, panel beside panel; a notebook shows it, and `savefig` writes a file."""
    from coterie.reports.draw import draw_panels  # matplotlib takes a second to load

    evidence = gather_evidence([folder])
    title = f"{story.paper}: {story.idea}"
    return draw_panels(story.panels(evidence), evidence.methods, title)
