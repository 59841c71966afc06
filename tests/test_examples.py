"""The examples run as they stand."""

from coterie.methods.registry import METHODS


def test_own_method(tmp_path, capsys, monkeypatch):
    import own_method

    monkeypatch.delitem(
        METHODS, "halfway", raising=False
    )  # it registers itself; other tests must not see it after
    own_method.main(rounds=2, out=str(tmp_path / "out"))
    del METHODS["halfway"]
    assert "halfway" in capsys.readouterr().out


def test_lora_text(tmp_path, capsys):
    import lora_text

    lora_text.main(tmp_path, rounds=2)
    printed = capsys.readouterr().out
    full, adapters = (
        int(line.split()[k].replace(",", ""))
        for line, k in zip(printed.splitlines(), (2, 1), strict=False)
    )
    assert full > 5 * adapters
    assert "PeftModelForSequenceClassification of person 0 is ready to use" in printed


def test_own_data(tmp_path, capsys):
    import own_data

    own_data.main(tmp_path, rounds=3)
    printed = capsys.readouterr().out
    assert "ditto" in printed
    assert "BatchNorm1d" in printed
