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


def test_own_data(tmp_path, capsys):
    import own_data

    own_data.main(tmp_path, rounds=3)
    printed = capsys.readouterr().out
    assert "ditto" in printed
    assert "BatchNorm1d" in printed


def test_personal_models(tmp_path, capsys):
    import personal_models

    personal_models.main(tmp_path, rounds=2)
    printed = capsys.readouterr().out
    assert "# Model of clinic-1" in printed
    assert "the same elsewhere: True" in printed
