"""Laws of reproduction: finished cells stay, figures are the runs' own, the page needs no runs."""

import json

import numpy as np
import pytest

from coterie.comparison import reproduce as again
from coterie.comparison.reproduce import measure, outcome, place_of, scale_of, table_of
from coterie.core.errors import BadInput
from coterie.experiment.papers import PaperColumn, PaperRow, PaperTable
from coterie.reports.reproduction import page, write_pages
from coterie.results.run import load

RECIPE = """
methods = ["local", "fedavg", "ditto"]
seeds = [0, 1]

[data]
clients = 4
rows = 160

[model]
name = "mlr"

[schedule]
rounds = 4

[engine]
path = "vectorized"
width = 20
compile = "no"
threads = 1
"""
TABLE = PaperTable(
    id="small-1",
    paper="Small",
    place="Table 1",
    claim="Ditto is above FedAvg.",
    metric="weighted",
    columns=(
        PaperColumn(
            name="digits",
            recipe="small",
            metric="weighted",
            rows=(
                PaperRow("FedAvg", "fedavg", value=50.0, spread=0.1),
                PaperRow("Ditto, global", "ditto", view="global", value=50.0),
                PaperRow("Ditto", "ditto", value=60.0, spread=0.1),
            ),
            above=(("ditto", "fedavg"),),
        ),
    ),
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A small table, run."""
    folder = tmp_path_factory.mktemp("reproduction")
    (folder / "small.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(again, "config_path", lambda name: folder / f"{name}.toml")
        again.reproduce(TABLE, folder)
        again.reproduce(TABLE, folder, scale=0.5)
    return folder


def test_a_cell_is_the_mean_of_its_runs(out):
    found = outcome(TABLE, out)
    runs = [load(out / "small" / f"ditto-seed{seed}") for seed in (0, 1)]
    ours = [100 * run.summary().weighted for run in runs]
    assert found.columns[0].cells[2].figure.ours.mean == pytest.approx(np.mean(ours))
    assert found.columns[0].cells[1].figure.ours.mean == pytest.approx(
        np.mean([100 * run.summary(view="global").weighted for run in runs])
    )
    assert found.state == "finished"
    assert (found.columns[0].done, found.columns[0].wanted) == (6, 6)


def test_whole_runs_come_before_shortened_ones(out):
    column = TABLE.columns[0]
    assert scale_of(place_of(out, column)) == 1
    assert load(out / "small@0.5" / "fedavg-seed0").experiment.schedule.rounds == 2
    only = replace_recipe(column, "other")
    assert place_of(out, only) is None


def replace_recipe(column, recipe):
    return column._replace(recipe=recipe)


def test_gains_are_over_fedavg_of_the_same_seed(out):
    run, base = (load(out / "small" / f"{m}-seed0") for m in ("ditto", "fedavg"))
    gains = 100 * (run.accuracy() - base.accuracy())
    assert measure(run, "gain_over_fedavg", "personal", base) == pytest.approx(gains.mean())
    assert np.isnan(measure(run, "gain_over_fedavg", "personal", None))
    assert np.isnan(measure(run, "mean", "no such view"))


def test_the_page_is_written_again_from_the_results_files_alone(out, tmp_path):
    written = write_pages([TABLE], out, tmp_path)
    text = written.read_text()
    assert page([TABLE], tmp_path / "results") == text
    file = json.loads((tmp_path / "results" / "small-1.json").read_text())
    assert len(file["columns"][0]["methods"]["ditto"][0]["clients"]) == 4
    assert "| Ditto | 60 ± 0.1 |" in text
    assert "ditto above fedavg" in text


def test_a_column_none_of_whose_methods_is_finished_is_not_on_the_page(out, tmp_path):
    column = TABLE.columns[0]._replace(name="later", rows=(), above=(("ditto@late", "local@late"),))
    both = TABLE._replace(columns=(*TABLE.columns, column))
    text = write_pages([both], out, tmp_path).read_text()
    assert "**digits**" in text
    assert "**later**" not in text
    assert "(in part)" in text
    alone = TABLE._replace(id="small-2", columns=(column,))
    assert "small-2 (Table 1)" in write_pages([alone], out, tmp_path / "alone").read_text()


def test_a_remark_stands_in_its_section(out, tmp_path):
    write_pages([TABLE], out, tmp_path)
    (tmp_path / "results" / "remarks.toml").write_text('small-1 = "A reading explains it."')
    assert "A reading explains it." in page([TABLE], tmp_path / "results")


def test_a_row_of_a_note_with_points_has_the_figure_of_its_point(tmp_path):
    points = ("lambda=0,T=1", "lambda=1,T=5")
    rows = tuple(PaperRow(point, "persfl", point=point) for point in points)
    column = PaperColumn(name="grid", recipe="grid", metric="note:grid_accuracy", rows=rows)
    table = TABLE._replace(id="grid-1", metric=column.metric, columns=(column,))
    (tmp_path / "grid.toml").write_text(
        RECIPE.replace('["local", "fedavg", "ditto"]', '["persfl"]').replace("[0, 1]", "[0]")
        + "\n[options.persfl]\nlambdas = [0.0, 1.0]\ntemperatures = [1.0, 5.0]\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(again, "config_path", lambda name: tmp_path / f"{name}.toml")
        found = again.reproduce(table, tmp_path)
    run = load(tmp_path / "grid" / "persfl-seed0")
    ours = [cell.figure.ours.mean for cell in found.columns[0].cells]
    assert ours == [measure(run, f"note:grid_accuracy[{point}]", "personal") for point in points]
    assert not np.isnan(ours).any()
    text = write_pages([table], tmp_path, tmp_path / "docs").read_text()
    assert all(f"| {p} |  | {our:.4g} |" in text for p, our in zip(points, ours, strict=True))


def test_unknown_tables_and_scales_are_refused(out):
    with pytest.raises(BadInput, match="there is no table 'pfml-11'; did you mean"):
        table_of("pfml-11")
    with pytest.raises(BadInput, match="scale = 0: give a share"):
        again.reproduce(TABLE, out, scale=0)
    with pytest.raises(BadInput, match="'small-1' has no recipe"):
        again.reproduce(replace_columns(TABLE), out)


def replace_columns(table):
    return table._replace(columns=(table.columns[0]._replace(recipe=""),), note="none")
