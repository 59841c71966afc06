"""Small pieces of HTML."""

from coterie.core.html import format_html_table, format_paragraph


def test_text_is_escaped():
    shown = format_paragraph("<b>") + format_html_table(["<h>"], [["<c>"]], "<t>")
    for letter in "bhct":
        assert f"&lt;{letter}&gt;" in shown
        assert f"<{letter}>" not in shown


def test_numbers_stand_on_the_right_and_words_on_the_left():
    cells = format_html_table(["a", "b", "c"], [["word", 3, "4.50"]], "").split("<td")[1:]
    assert ["right" in cell for cell in cells] == [False, True, True]
