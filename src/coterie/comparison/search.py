"""A search with Optuna: the next options to try follow from the trials so far, from nothing else.

The study is built again from the record before every trial, and its draws have a seed per trial, so
that a search that was killed goes on as if it had not been. All methods have the same seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie.comparison.trials import Trial
from coterie.core.errors import BadInput
from coterie.methods.search_space import SearchRange

SEED = 20_000  # the first trial's; the next has the next
RANDOM_TRIALS = 6  # trials before Optuna's model of the scores begins to propose
HALVING = 3  # of so many trials that reach a rung, one goes on
FIRST_RUNG = 6  # the first rung stands after this part of the rounds, the next after half of them


class SearchedOption(NamedTuple):
    """One option that is searched."""

    knob: SearchRange
    whole: bool  # whether it takes whole numbers
    now: Any  # its value in the options as given, which are tried first

    def value(self, found: Any) -> Any:
        """What is tried for a number, or for a position in a list of choices."""
        return self.knob.choices[found] if self.knob.choices else self.knob.near(found, self.whole)

    @property
    def start(self) -> Any:
        """The number or position of the value as given; None where it is not among those to try."""
        if self.knob.choices:
            return self.knob.choices.index(self.now) if self.now in self.knob.choices else None
        return self.now if self.knob.low <= self.now <= self.knob.high else None


class Proposal(NamedTuple):
    """A trial that is to be played."""

    options: dict[str, Any]
    point: dict[str, Any]
    study: Any  # optuna.Study
    trial: Any  # optuna.Trial

    def goes_on(self, round: int, score: float) -> bool:
        """Whether a trial with this score (more is better) is worth more rounds."""
        self.trial.report(score, round)
        return not self.trial.should_prune()

    @property
    def rungs(self) -> dict[str, float]:
        """The scores at the halvings that it came to."""
        known = self.study.trials[-1].system_attrs
        return {k: v for k, v in known.items() if k.startswith("completed_rung_")}


def load_optuna() -> Any:
    """Optuna, which is an extra."""
    try:
        import optuna
    except ImportError:
        raise BadInput(
            "--trials and --budget search with Optuna: pip install coterie[tune]"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def propose_trial(
    turns: Mapping[str, SearchedOption], tried: Sequence[Trial], better: int, rounds: int
) -> Proposal:
    """The next trial; `rounds` of a whole one."""
    study, spaces = _build_study(turns, tried, better, rounds), _spaces_of(turns)
    if not tried:
        study.enqueue_trial({w: t.start for w, t in turns.items() if t.start is not None})
    trial = study.ask(spaces)
    options = {option: turn.value(trial.params[option]) for option, turn in turns.items()}
    point = {
        option: trial.params[option] if turn.knob.choices else options[option]
        for option, turn in turns.items()
    }
    return Proposal(options, point, study, trial)


def _build_study(
    turns: Mapping[str, SearchedOption], tried: Sequence[Trial], better: int, rounds: int
) -> Any:
    library = load_optuna()
    pruner = library.pruners.SuccessiveHalvingPruner(
        min_resource=max(1, rounds // FIRST_RUNG), reduction_factor=HALVING
    )
    sampler = library.samplers.TPESampler(seed=SEED + len(tried), n_startup_trials=RANDOM_TRIALS)
    study = library.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    spaces, states = _spaces_of(turns), library.trial.TrialState
    for trial in tried:
        score = trial.score if trial.state in ("finished", "repeated") else None
        study.add_trial(
            library.trial.create_trial(
                state=states.PRUNED if score is None else states.COMPLETE,
                value=None if score is None else better * score,
                params=trial.point,
                distributions=spaces,
                intermediate_values={
                    int(round): better * score for round, score in (trial.curve or {}).items()
                },
                system_attrs=dict(trial.rungs or {}),
            )
        )
    return study


def _spaces_of(turns: Mapping[str, SearchedOption]) -> dict[str, Any]:
    return {option: _space_of(turn) for option, turn in turns.items()}


def _space_of(turn: SearchedOption) -> Any:
    kinds, knob = load_optuna().distributions, turn.knob
    if knob.choices:
        return kinds.CategoricalDistribution(tuple(range(len(knob.choices))))
    if turn.whole:
        return kinds.IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return kinds.FloatDistribution(knob.low, knob.high, log=knob.log)
