"""The `[schedule]` table of an experiment: how many rounds, who takes part, what is measured."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from coterie.core.options import MAX_COUNT, BelowOne, NonNegativeInt, PositiveInt, Range


class Schedule(NamedTuple):
    """Who does what when: the `[schedule]` table of an experiment."""

    rounds: PositiveInt = 50  # communication rounds
    # clients sampled per round: up to 1 a share of all, above a count
    participation: Annotated[float, Range(0, MAX_COUNT)] = 1.0
    # who trains: the "sampled" clients, or "all", of whom the sampled are averaged (pFedMe's and
    # PFML's published runs)
    trains: Literal["sampled", "all"] = "sampled"
    dropout_clients: BelowOne = 0.0  # probability that a sampled client does not answer
    eval_every: NonNegativeInt = 0  # rounds between evaluations; 0: twenty evaluations per run
    # the parts of the clients' rows that are evaluated
    parts: tuple[Literal["train", "validation", "test"], ...] = ("train", "validation", "test")
    # the metric that chooses best round, options and method; empty: the default of the task
    metric: str = ""
    newcomer_rounds: PositiveInt = 10  # rounds of local work for each client after training
    # numbers of training rows with which newcomers are evaluated too
    few_shot: tuple[PositiveInt, ...] = ()

    def sample_size(self, clients: int) -> int:
        """Clients sampled a round."""
        return (
            clients
            if self.participation == 1
            else max(
                1,
                int(self.participation * clients)
                if self.participation < 1
                else int(self.participation),
            )
        )

    @property
    def measured(self) -> tuple[str, ...]:
        """The parts that are measured: with validation rows, which methods choose on, those that
        choose between methods; a run for its validation rows alone, as of tuning, sees no others.
        """
        if self.parts == ("validation",):
            return self.parts
        more = {"validation": ("validation", "select")}
        return tuple(each for part in self.parts for each in more.get(part, (part,)))

    @property
    def every(self) -> int:
        return self.eval_every or max(1, self.rounds // 20)
