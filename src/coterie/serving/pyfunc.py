"""A client's model for MLflow: its pyfunc flavour, which any of MLflow's tools can serve."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.version import __version__
from coterie.results.personal_models import PersonalModel
from coterie.serving.model_files import load_model_files, write_safetensors
from coterie.serving.predictions import build_prediction_frame


class PyfuncModel:
    """What MLflow calls."""

    def __init__(self, model: PersonalModel) -> None:
        self.model = model

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:
        """A pandas frame: the prediction, and the probability of every class."""
        return build_prediction_frame(self.model.task, self.model.outputs(rows)).to_pandas()


def _load_pyfunc(path: str) -> PyfuncModel:
    """MLflow asks for a model by this name."""
    return PyfuncModel(load_model_files(Path(path)))


def write_pyfunc(model: PersonalModel, folder: Path) -> None:
    """The model in MLflow's layout."""
    try:
        from mlflow import pyfunc
    except ImportError:
        raise BadInput("--to pyfunc needs MLflow: pip install 'coterie[mlflow]'") from None
    text = model.intake.preparation.text if model.intake.preparation else None
    held = folder / "held"
    held.mkdir()
    write_safetensors(model, held)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about types it has to guess
        pyfunc.save_model(
            path=str(folder / "model"),
            loader_module=__name__,
            data_path=str(held),
            pip_requirements=[f"coterie{'[text]' if text else ''}=={__version__}"],
            metadata={"client": model.client, "method": model.card["method"]},
        )
    shutil.rmtree(held)
    for path in (folder / "model").iterdir():
        path.rename(folder / path.name)
    (folder / "model").rmdir()
