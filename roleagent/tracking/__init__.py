"""MLflow: runs, metrics, figures, traces, the model registry; and a Markdown report from the same numbers.

The only room that imports mlflow, and only when a tracker is built.
"""

from roleagent.tracking.registry import ModelVersion
from roleagent.tracking.report import render_report, write_report
from roleagent.tracking.tracker import Tracker

__all__ = ["ModelVersion", "Tracker", "render_report", "write_report"]
