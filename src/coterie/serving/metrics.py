"""What a service counts, in the text format of Prometheus; no client is named in it."""

from __future__ import annotations

import time
from collections import Counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class ServiceMetrics:
    """Counts of one service since it began."""

    def __init__(self) -> None:
        self.started = time.time()
        self.answers: Counter[int] = Counter()  # by status
        self.rows = self.reloads = 0
        self.seconds = 0.0
        self._under = [0] * len(BUCKETS)

    def note(self, status: int, seconds: float) -> None:
        """One request for predictions."""
        self.answers[status] += 1
        self.seconds += seconds
        for k, bound in enumerate(BUCKETS):
            if seconds <= bound:
                self._under[k] += 1

    def text(self, gauges: dict[str, tuple[str, str, float]]) -> str:
        """All numbers; gauges: {name: (kind, meaning, value)} of the moment."""
        lines = [
            "# HELP coterie_requests_total Requests for predictions, by status.",
            "# TYPE coterie_requests_total counter",
        ]
        lines += [
            f'coterie_requests_total{{status="{status}"}} {count}'
            for status, count in sorted(self.answers.items())
        ]
        name, total = "coterie_request_seconds", sum(self.answers.values())
        lines += [f"# HELP {name} Seconds of a request.", f"# TYPE {name} histogram"]
        for bound, count in zip(BUCKETS, self._under, strict=True):
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {count}')
        lines += [f'{name}_bucket{{le="+Inf"}} {total}', f"{name}_sum {self.seconds!r}"]
        lines.append(f"{name}_count {total}")
        own = {
            "rows_total": ("counter", "Rows that were predicted.", self.rows),
            "reloads_total": ("counter", "Runs that took over from another.", self.reloads),
            "start_time_seconds": ("gauge", "When the service began, Unix time.", self.started),
        }
        for option, (kind, meaning, value) in {**own, **gauges}.items():
            lines += [f"# HELP coterie_{option} {meaning}", f"# TYPE coterie_{option} {kind}"]
            lines.append(f"coterie_{option} {value!r}")
        return "\n".join(lines) + "\n"
