"""What the card of a model tells of privacy."""

from coterie.results.personal_models import Models
from coterie.running.execute import execute
from coterie.serving.cards import OWN_PART_NOTE, render_markdown, render_page
from helpers.runs import IMAGES, experiment

CLIENT = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0, "weighting": "equal"}
EXAMPLE = {"dp": "example", "dp_clip": 0.5, "dp_noise": 2.0}


def card_of(folder, **settings):
    execute(experiment(**(IMAGES | settings)), folder)
    return Models(folder).model(0).card


def test_a_card_tells_the_epsilon_its_unit_and_what_it_covers(tmp_path):
    card = card_of(tmp_path / "run", **CLIENT)
    facts = card["privacy"]
    assert facts["unit"] == "client"
    for text in (render_markdown(card), render_page(card)):
        assert f"epsilon = {facts['epsilon']:.4g} at delta = {facts['delta']:.3g}" in text
        assert "for one client" in text
        assert "It covers uploads" in text
        assert OWN_PART_NOTE in text


def test_a_card_of_private_rows_says_rows(tmp_path):
    card = card_of(tmp_path / "run", **EXAMPLE)
    assert "for one training row" in render_markdown(card)
    assert OWN_PART_NOTE not in render_markdown(card)


def test_a_card_without_noise_promises_nothing(tmp_path):
    card = card_of(tmp_path / "run")
    assert card["privacy"] is None
    assert "epsilon" not in render_markdown(card)
    assert "epsilon" not in render_markdown({k: v for k, v in card.items() if k != "privacy"})
