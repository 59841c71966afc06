"""A client's model as an ONNX graph with the preparation of its rows inside.

A table has one input per column, each [rows]: doubles for numbers (NaN where missing), truth values
(0 or 1) and dates (seconds since 1970), strings for texts ("" where missing). Texts that are read
word by word are one input of word numbers, which tokenizer.json makes. Where `coterie explain` has
fitted how sure the model is, outputs say that too: calibrated probabilities and which classes are
in the set, or the ends of the interval. The graph is made once per
network; every further client puts its own numbers in. Each file is run by onnxruntime on drawn
rows before it is handed out, and must say what the model itself says.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from coterie.analysis.calibration import TINY as TINY_SHARE
from coterie.analysis.calibration import scale_probabilities
from coterie.core.errors import BadInput
from coterie.core.files import write_text
from coterie.data.prepare.inputs import InputBuilder
from coterie.data.prepare.preparation import DAY, FittedColumn, read_later_rows
from coterie.data.read.columns import BOOLEAN, CATEGORY, DATE, TEXT, RowSource
from coterie.results.personal_models import ModelTask, PersonalModel
from coterie.results.sureness import Sureness, find_sureness
from coterie.serving.model_files import CARD, write_tokenizer
from coterie.serving.pipeline import Pipeline, build_pipeline, example_of

FILE, CELLS, PROBABILITIES = "model.onnx", "cells", "probabilities"
CALIBRATED, SETS, LOW, HIGH = "calibrated", "in_set", "low", "high"  # where a run was explained
CHECK_ROWS, TOLERANCE = 64, 1e-5  # rows that are compared, and how far apart they may be
TINY = 1e-30  # so that nothing is divided by 0


def sureness_of(model: PersonalModel) -> Sureness | None:
    """How sure a model is; None where `coterie explain` has not been run since it was trained."""
    if model.folder is None or model.task.several:
        return None
    return find_sureness(model.folder, model.client, model.card["version"])


class OnnxWriter:
    """Writes models as ONNX; the graph of the last network is kept for the next client."""

    def __init__(self) -> None:
        try:
            import onnx
            import onnxruntime
            import onnxscript  # noqa: F401  # torch writes ONNX through it
        except ImportError:
            raise BadInput(
                "--to onnx needs onnx, onnxscript and onnxruntime: pip install 'coterie[onnx]'"
            ) from None
        self.onnx, self.runtime = onnx, onnxruntime
        self._key, self._graph = "", None

    def __call__(self, model: PersonalModel, folder: Path) -> None:
        """Write the model into a folder, if it says what it should."""
        whole = build_pipeline(model, "ONNX")
        assert isinstance(whole, Pipeline)
        proto = self._fill_graph(model, whole)
        kept = model.intake.preparation
        if model.intake.is_table and kept is not None and not kept.text:
            self._add_inputs(proto, model.intake)
        self._add_labels(proto, model.task)
        sure = sureness_of(model)
        if sure:
            self._add_sureness(proto, model.task, sure)
        self.onnx.checker.check_model(proto)
        self._check(proto, model, sure)
        (folder / FILE).write_bytes(proto.SerializeToString())
        write_text(folder / CARD, json.dumps(model.card, indent=1))
        write_tokenizer(model, folder)

    def _fill_graph(self, model: PersonalModel, whole: Pipeline) -> Any:
        """The graph of the network with this client's numbers."""
        kept = model.intake.preparation
        alike = [(*c.outputs, c.kind, c.indicator) for c in kept.columns] if kept else []
        key = json.dumps([model.card["network"], alike, str(whole.network)])
        if key != self._key or self._graph is None:
            self._graph, self._key = _graph_of(whole, example_of(model)), key
        proto = self.onnx.ModelProto()
        proto.CopyFrom(self._graph)
        numbers = whole.state_dict()
        for tensor in proto.graph.initializer:
            if tensor.name in numbers:
                array = np.ascontiguousarray(numbers[tensor.name].numpy())
                tensor.CopyFrom(self.onnx.numpy_helper.from_array(array, tensor.name))
        return proto

    def _add_inputs(self, proto: Any, intake: InputBuilder) -> None:
        """One input per column in place of the cells."""
        made = self.onnx.helper
        kinds = self.onnx.TensorProto
        nodes, inputs, parts = [], [], []
        assert intake.preparation is not None
        axis = made.make_tensor("coterie.axis", kinds.INT64, [1], [1])
        gone = made.make_tensor("coterie.gone", kinds.DOUBLE, [], [float("nan")])
        zero = made.make_tensor("coterie.zero", kinds.INT64, [], [0])
        for k, column in enumerate(intake.preparation.columns):
            kind = kinds.STRING if column.kind == CATEGORY else kinds.DOUBLE
            inputs.append(made.make_tensor_value_info(column.name, kind, ["rows"]))
            source = column.name
            if column.kind == CATEGORY:
                nodes += self._encode_text(column, k)
                source = f"coterie.text{k}"
            nodes.append(made.make_node("Unsqueeze", [source, axis.name], [f"coterie.cell{k}"]))
            parts.append(f"coterie.cell{k}")
        nodes.append(made.make_node("Concat", parts, [CELLS], axis=1))
        graph = proto.graph
        nodes += graph.node
        for held, more in ((graph.input, inputs), (graph.node, nodes)):
            del held[:]
            held.extend(more)
        graph.initializer.extend([axis, gone, zero])
        self._add_opset(proto, "ai.onnx.ml", 3)

    def _encode_text(self, column: FittedColumn, k: int) -> list[Any]:
        """A text as its place among the categories; NaN where it is missing."""
        made, names = self.onnx.helper, [f"coterie.{part}{k}" for part in ("code", "none", "wide")]
        code, none, wide = names
        places = made.make_node(
            "LabelEncoder",
            [column.name],
            [code],
            domain="ai.onnx.ml",
            keys_strings=[*column.categories, ""],
            values_int64s=[*range(len(column.categories)), -1],
            default_int64=len(column.categories),
        )
        double = int(self.onnx.TensorProto.DOUBLE)
        return [
            places,
            made.make_node("Less", [code, "coterie.zero"], [none]),
            made.make_node("Cast", [code], [wide], to=double),
            made.make_node("Where", [none, "coterie.gone", wide], [f"coterie.text{k}"]),
        ]

    def _add_labels(self, proto: Any, task: ModelTask) -> None:
        """The name of the likeliest class as a second output."""
        if not task.names or task.several:
            return
        made = self.onnx.helper
        proto.graph.node.extend(
            [
                made.make_node("ArgMax", [PROBABILITIES], ["coterie.best"], axis=1, keepdims=0),
                made.make_node(
                    "LabelEncoder",
                    ["coterie.best"],
                    ["label"],
                    domain="ai.onnx.ml",
                    keys_int64s=list(range(len(task.names))),
                    values_strings=list(task.names),
                ),
            ]
        )
        kind = self.onnx.TensorProto.STRING
        proto.graph.output.append(made.make_tensor_value_info("label", kind, ["rows"]))
        self._add_opset(proto, "ai.onnx.ml", 3)

    def _add_sureness(self, proto: Any, task: ModelTask, sure: Sureness) -> None:
        """Calibrated probabilities and the set of every row, or the ends of its interval."""
        made, kinds = self.onnx.helper, self.onnx.TensorProto
        names = {"least": TINY_SHARE, "temperature": sure.temperature or 1.0}
        names |= {"one": 1.0, "reach": sure.quantile}
        graph = proto.graph
        said = next(o for o in graph.output if o.name == PROBABILITIES)
        dtype = said.type.tensor_type.elem_type
        for name, value in names.items():
            graph.initializer.append(made.make_tensor(f"coterie.{name}", dtype, [], [value]))
        if task.names:
            steps = [
                ("Max", [PROBABILITIES, "coterie.least"], "coterie.share"),
                ("Log", ["coterie.share"], "coterie.log"),
                ("Div", ["coterie.log", "coterie.temperature"], "coterie.logit"),
                ("Softmax", ["coterie.logit"], CALIBRATED),
                ("Sub", ["coterie.one", PROBABILITIES], "coterie.strange"),
                ("LessOrEqual", ["coterie.strange", "coterie.reach"], SETS),
            ]
            outputs = [(CALIBRATED, dtype), (SETS, kinds.BOOL)]
            shape = ["rows", len(task.names)]
        else:
            steps = [
                ("Sub", [PROBABILITIES, "coterie.reach"], LOW),
                ("Add", [PROBABILITIES, "coterie.reach"], HIGH),
            ]
            outputs, shape = [(LOW, dtype), (HIGH, dtype)], ["rows"]
        for kind, inputs, output in steps:
            more = {"axis": 1} if kind == "Softmax" else {}
            graph.node.append(made.make_node(kind, inputs, [output], **more))
        for name, kind in outputs:
            graph.output.append(made.make_tensor_value_info(name, kind, shape))

    def _add_opset(self, proto: Any, domain: str, version: int) -> None:
        """Say which words of ONNX the graph uses."""
        if all(known.domain != domain for known in proto.opset_import):
            proto.opset_import.append(self.onnx.helper.make_opsetid(domain, version))

    def _check(self, proto: Any, model: PersonalModel, sure: Sureness | None) -> None:
        """Refuse a graph that says anything else than the model, row by row."""
        quiet = self.runtime.SessionOptions()
        quiet.log_severity_level = 3  # errors alone
        session = self.runtime.InferenceSession(
            proto.SerializeToString(), quiet, providers=["CPUExecutionProvider"]
        )
        rows = synthesize_rows(model.intake)
        feeds = build_feeds(model.intake, rows)
        found = session.run([PROBABILITIES], feeds)[0]
        want = model.task.learnt.predict(model.outputs(rows)).numpy()
        if sure and model.task.names:
            scaled = scale_probabilities(want.astype(float), sure.temperature or 1.0)
            found = np.hstack([found, session.run([CALIBRATED], feeds)[0]])
            want = np.hstack([want, scaled])
        # numbers in units of the largest of them, probabilities as they are
        size = 1.0 if model.task.names else max(float(np.abs(want).max()), TINY)
        apart = np.abs(found - want).reshape(len(want), -1).max(1) / size
        if not apart.max() <= TOLERANCE:
            row = int(apart.argmax())
            raise BadInput(
                f"the ONNX graph of client '{model.client}' is {apart.max():.2g} of the output's "
                f"size from the model itself, most of all for the row {_show_row(rows, row)}: use "
                "--to torch"
            )


def _show_row(rows: Any, k: int) -> str:
    """A row in a line, to see which of its cells are to blame."""
    if not isinstance(rows, pl.DataFrame):
        return str(k)
    return ", ".join(f"{name} = {value}" for name, value in rows.row(k, named=True).items())[:300]


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Without what torch's exporter says about itself."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _graph_of(whole: Pipeline, example: torch.Tensor) -> Any:
    """The graph of a module, its numbers under their names in the module."""
    rows = torch.export.Dim("rows", min=1)
    with _silence_torch(), torch.no_grad():
        program: Any = torch.onnx.export(
            whole,
            (example,),
            dynamo=True,
            verbose=False,
            optimize=False,  # or numbers are folded into others and lose their names
            dynamic_shapes=({0: rows},),
            input_names=[CELLS],
            output_names=[PROBABILITIES],
        )
    return program.model_proto


def build_feeds(intake: InputBuilder, rows: Any) -> dict[str, np.ndarray]:
    """Rows as the inputs of the graph."""
    if not intake.is_table or intake.preparation is None:
        whole = np.asarray(rows)
        return {CELLS: whole if whole.dtype == np.int64 else whole.astype(np.float32)}
    if intake.preparation.text:
        return {CELLS: intake.inputs(rows)}
    read = read_later_rows(intake.preparation, rows, RowSource(("rows",), (rows.height,)))
    found: dict[str, np.ndarray] = {}
    for column, cells in zip(read.columns, read.x.T, strict=True):
        if column.kind == CATEGORY:
            places = np.where(np.isnan(cells), len(column.values), cells).astype(int)
            found[column.name] = np.array([*column.values, ""], object)[places]
        else:
            found[column.name] = np.ascontiguousarray(cells)
    return found


def synthesize_rows(intake: InputBuilder, rows: int = CHECK_ROWS) -> Any:
    """Rows as training might have had them: of every category, unseen ones and missing ones."""
    rng, kept = np.random.default_rng(0), intake.preparation
    if not intake.is_table or kept is None:
        if kept is not None and kept.affine is not None:
            return rng.integers(0, 256, (rows, *intake.row_shape)).astype(np.float32)
        return rng.normal(size=(rows, *intake.row_shape)).astype(np.float32)
    return pl.DataFrame([_synthesize_column(c, rng, rows) for c in kept.columns])


def _synthesize_column(column: FittedColumn, rng: np.random.Generator, rows: int) -> pl.Series:
    """One column of drawn rows, a fifth of it missing."""
    gone = rng.random(rows) < 0.2
    if column.kind == TEXT:
        known = json.loads(column.tokenizer)["model"]["vocab"]
        values: list[Any] = [" ".join(rng.choice(list(known), 5)) for _ in range(rows)]
        kind: Any = pl.String
    elif column.kind == CATEGORY:
        values = rng.choice([*column.categories, "(unseen)"], rows).tolist()
        kind = pl.String
    elif column.kind == BOOLEAN:
        values, kind = (rng.random(rows) < 0.5).tolist(), pl.Boolean
    else:
        unit = DAY if column.kind == DATE else 1.0
        numbers = (column.centre + (column.spread or 1.0) * rng.normal(size=rows)) * unit
        values, kind = numbers.tolist(), pl.Float64
    cells = [None if lost else value for lost, value in zip(gone, values, strict=True)]
    series = pl.Series(column.name, cells, kind)
    if column.kind == DATE:
        return (series * 1e6).cast(pl.Int64).cast(pl.Datetime("us"))
    return series
