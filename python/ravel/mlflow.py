"""``python -m ravel.mlflow RUN`` follows a run folder of ``ravel train`` into MLflow, while the run goes on and after it.

    MLFLOW_TRACKING_URI=http://host:5000 python -m ravel.mlflow runs/sft-1 --experiment my-experiment
    python -m ravel.mlflow runs/sft-1 --tracking file:///data/mlruns --once

Every line of ``metrics.jsonl`` becomes a step, config.json the parameters, samples.jsonl and the page of ``ravel report`` artifacts. A
follower that is started again, also after ``kill -9``, goes on in the same MLflow run: MLflow is asked for the last step of every
metric.
"""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

from . import _follow

__all__ = ["follow", "main"]


class _Mlflow:
    def __init__(self, folder: pathlib.Path, state: dict[str, Any], config: dict[str, Any], tracking: str | None, experiment: str):
        import mlflow
        from mlflow.tracking import MlflowClient

        self.entities, self.client, self.state = mlflow.entities, MlflowClient(tracking), state
        found = self.client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else self.client.create_experiment(experiment)
        runs = self.client.search_runs([number], f"tags.ravel_id = '{state['id']}'")
        run = runs[0] if runs else self.client.create_run(number, run_name=folder.name, tags={"ravel_id": state["id"]})
        self.id = run.info.run_id
        if not run.data.params:
            params = [self.entities.Param(name, str(value)[:500]) for name, value in config.items() if value not in ({}, "", None)]
            self.client.log_batch(self.id, params=params[:100])
        self.client.update_run(self.id, "RUNNING")
        self.steps = {metric.key: metric.step for metric in run.data._metric_objs}
        self.last = max(self.steps.values(), default=0) - 1  # of the last step some metrics may be missing
        self.metrics: list[Any] = []

    def row(self, step: int, values: dict[str, float]) -> None:
        now = int(1000 * values.pop("time", time.time()))  # a store of files has no room for "time" beside "time/update_sec"
        self.metrics += [self.entities.Metric(name, value, now, step) for name, value in values.items() if step > self.steps.get(name, -1)]
        while len(self.metrics) >= 1000:  # MLflow takes no more at once
            self.flush()

    def flush(self) -> None:
        if self.metrics:
            self.client.log_batch(self.id, metrics=self.metrics[:1000])
            del self.metrics[:1000]

    def end(self, step: int, columns: list[str], rows: list[list[Any]], page: str | None) -> None:
        if columns:
            self.client.log_dict(self.id, {"columns": columns, "data": rows}, "samples.json")
        if page is not None:
            self.client.log_text(self.id, page, "report.html")

    def close(self) -> None:
        self.client.set_terminated(self.id)


def follow(folder: str | os.PathLike[str], *, once: bool = False, every: float = 2.0, tracking: str | None = None,
           experiment: str = "ravel") -> str:
    """Logs a run folder to MLflow until the run ends, or what is there now with ``once``; the id of the MLflow run. ``tracking`` is
    MLflow's tracking URI (default: MLFLOW_TRACKING_URI)."""
    return _follow.follow("mlflow", folder, lambda path, state, config: _Mlflow(path, state, config, tracking, experiment), once, every)


def main() -> None:
    _follow.main("mlflow", follow, "Follows a run of ravel train into MLflow.",
                 {"tracking": "MLflow's tracking URI (default: MLFLOW_TRACKING_URI)", "experiment": "of MLflow (default: ravel)"})


if __name__ == "__main__":
    main()
