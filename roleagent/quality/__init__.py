"""What passes from phase to phase is checked by Great Expectations suites, kept as code.

Importing this package is light; Great Expectations (7 seconds) is imported at the first validation, or by `warm_up`.
"""

import os

from roleagent.quality.report import QualityReport, Violation
from roleagent.quality.validate import validate_diagnoses, validate_tasks, validate_trajectories, warm_up

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read when Great Expectations is imported: it calls nobody

__all__ = ["QualityReport", "Violation", "validate_diagnoses", "validate_tasks", "validate_trajectories", "warm_up"]
