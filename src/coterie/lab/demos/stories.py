"""What each demo says: the paper's claim, what to look at, and whether the claim holds here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from coterie.analysis.answer import Claim, claim_of, count_clients
from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.lab.demos import panels
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure
from coterie.results.comparison import Comparison


class Story(NamedTuple):
    """A paper's idea, shown by a recipe of embedded data."""

    method: str
    paper: str
    idea: str  # one sentence, for who has not read it
    claim: str  # what the paper says of accuracy, a clause
    rivals: tuple[str, ...]  # what the claim is over
    look: tuple[str, ...]  # a line for each panel
    panels: Callable[[Evidence], list[Figure]]
    limits: str  # what these few rows do not show
    control: tuple[str, str] = ("", "")  # what may explain the gain as well, and what it is

    @property
    def recipe(self) -> str:
        return f"demo-{self.method}"


STORIES = {
    "persfl": Story(
        method="persfl",
        paper="PersFL (Divi, 2021)",
        idea="Every client is taught by the global model that served it best.",
        claim="clients distilled from their own best teacher beat FedAvg and training alone",
        rivals=("local", "fedavg"),
        look=(
            "left: the round of the teacher differs from client to client",
            "middle: what each client gains over training alone",
            "right: the worst-served clients gain too",
        ),
        panels=panels.persfl_panels,
        limits="Twenty clients have about 54 training rows and 9 validation rows each; the thesis "
        "has thousands, and there the gain over fine-tuning is small.",
        control=("finetune", "which distils nothing"),
    ),
    "pfml": Story(
        method="pfml",
        paper="PFML (Yang, Tian, Zhang, 2021)",
        idea="A shared linear and a private deep network learn from each other's predictions.",
        claim="a personal network of another kind beats FedAvg and training alone",
        rivals=("local", "fedavg"),
        look=(
            "left: the deep network with and without its linear peer, by round",
            "right: what each client gains over training alone",
        ),
        panels=panels.pfml_panels,
        limits="FedAvg and Local train the linear network alone. How much of the gain is mutual "
        "learning shows pfml@alone, the same two networks without it.",
        control=("pfml@alone", "the same networks without mutual learning"),
    ),
    "ktpfl": Story(
        method="ktpfl",
        paper="KT-pFL (Zhang et al., 2021)",
        idea="Clients with unlike networks teach each other by what they say of public rows.",
        claim="learned coefficients beat equal ones (FedMD) and training alone",
        rivals=("local", "fedmd"),
        look=(
            "left and middle: the coefficients c, from flat to one block per group",
            "right: accuracy by network, with Local and FedMD beside it",
        ),
        panels=panels.ktpfl_panels,
        limits="FedAvg cannot average four networks; FedMD, the equal mean of predictions, stands "
        "in its place.",
    ),
    "selffl": Story(
        method="selffl",
        paper="Self-FL (Chen et al., 2022)",
        idea="How uncertain a client is, and how unlike clients are, sets its local steps.",
        claim="clients that choose their steps by uncertainty beat FedAvg and training alone",
        rivals=("local", "fedavg"),
        look=(
            "left: sigma^2 within and between clients by round",
            "middle: the steps that (8) asks of each client, before the limit of 40 (1.6 here)",
            "right: what each client gains over training alone",
        ),
        panels=panels.selffl_panels,
        limits="It may take up to 40 steps a round where fedavg takes an epoch of three to five. "
        "What it gains over fedavg@40, which takes as many, is its own; the rest is more work.",
        control=("fedavg@40", "FedAvg with as many steps"),
    ),
    "ucfl": Story(
        method="ucfl",
        paper="UCFL (Mestoukirdi et al., 2021)",
        idea="Every client mixes the models of those whose gradients are like its own.",
        claim="mixing by similarity beats FedAvg and training alone, and few streams suffice",
        rivals=("local", "fedavg"),
        look=(
            "first: W, one block per group of clients",
            "second: the silhouette of W's rows, by which the paper chooses the streams",
            "third: accuracy against streams; one is FedAvg",
            "fourth: accuracy against time where uploads are slow",
        ),
        panels=panels.ucfl_panels,
        limits="The groups were made (each numbers the digits in its own way); clients that "
        "differ less need more rows to be told apart, and so does the silhouette to find the true "
        "number.",
        control=("ucfl@2", "which sends two models a round instead of one per client"),
    ),
}


def find_story(name: str) -> Story:
    """The demo of a paper by its method's name."""
    if name not in STORIES:
        raise BadInput(f"there is no demo {format_value(name)}{suggest_name(name, STORIES)}")
    return STORIES[name]


def judge_claims(story: Story, comparison: Comparison) -> list[Claim]:
    """The method against each of its rivals, client by client on test rows."""
    found = {
        name: comparison.client_values(name)
        for name in (story.method, *story.rivals)
        if name in comparison.runs
    }
    return [
        claim_of(story.method, rival, found, comparison.fixed_partition)
        for rival in story.rivals
        if rival in found
    ]


def tell(story: Story, comparison: Comparison) -> str:
    """Whether the paper's claim holds here, in one sentence with its figures."""
    measure, claims = comparison.measure, judge_claims(story, comparison)
    over = "; ".join(
        f"{measure.gap(claim.difference)} over {claim.other}, better for {claim.better} and worse "
        f"for {claim.worse} of {count_clients(claim)}"
        for claim in claims
    )
    mean = measure.write(float(comparison.client_values(story.method).mean()))
    return (
        f"The paper's claim ({story.claim}) {format_verdict(claims)}: {story.method} has "
        f"{measure.label} {mean}, {over}.{_tell_control(story, comparison)}"
    )


def _tell_control(story: Story, comparison: Comparison) -> str:
    """How much is left over what may explain the gain as well."""
    name, why = story.control
    if name not in comparison.runs:
        return ""
    found = {m: comparison.client_values(m) for m in (story.method, name)}
    claim = claim_of(story.method, name, found, comparison.fixed_partition)
    sure = "significant" if claim.shown or claim.refuted else "not significant"
    return f" Beside {name}, {why}: {comparison.measure.gap(claim.difference)}, {sure}."


def format_verdict(claims: list[Claim]) -> str:
    """Shown over every rival; or of the right sign, but more clients are needed; or neither."""
    shown = [claim.other for claim in claims if claim.shown]
    open_ = [claim.other for claim in claims if not claim.shown and claim.difference.mean > 0]
    wrong = [claim.other for claim in claims if claim.difference.mean <= 0]
    if len(shown) == len(claims):
        return "holds here"
    if wrong:
        more = f", though over {' and '.join(shown)}" if shown else ""
        return f"does not hold here over {' and '.join(wrong)}{more}"
    beyond = f"significant over {' and '.join(shown)}, and " if shown else ""
    return f"has the right sign here, {beyond}not significant over {' and '.join(open_)}"
