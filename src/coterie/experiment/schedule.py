"""The run loop: stages, rounds, exchanges, evaluation. It knows the server; clients are the
engine's.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from coterie.core.options import MAX_COUNT, BelowOne, NonNegativeInt, PositiveInt, Range


class Schedule(NamedTuple):
    """Who does what when: the `[schedule]` table of an experiment."""

    rounds: PositiveInt = 50
    sample: Annotated[float, Range(0, MAX_COUNT)] = (
        1.0  # clients asked a round: a share up to 1, a count above
    )
    # "all": everybody trains, the sampled are averaged (pFedMe's and PFML's published runs)
    trains: Literal["sampled", "all"] = "sampled"
    drop: BelowOne = 0.0  # chance that a client asked does not answer
    evaluate: NonNegativeInt = 0  # every so many rounds; 0: twenty times a run
    parts: tuple[Literal["train", "validation", "test"], ...] = ("train", "validation", "test")
    metric: str = ""  # what decides: best round, tuning, answer; "": the usual one of the task
    newcomer_rounds: PositiveInt = 10  # of local work, for each client that came after training
    few_shot: tuple[PositiveInt, ...] = ()  # training rows with which newcomers are measured too

    def asked(self, clients: int) -> int:
        """Clients sampled a round."""
        return (
            clients
            if self.sample == 1
            else max(1, int(self.sample * clients) if self.sample < 1 else int(self.sample))
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
        return self.evaluate or max(1, self.rounds // 20)
