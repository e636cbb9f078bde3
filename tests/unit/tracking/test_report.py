"""The report says what the numbers say, and untrusted words stay words."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from roleagent.loop.costs import cost_table
from roleagent.loop.timing import Timing
from roleagent.tracking.advice import suggestions
from roleagent.tracking.report import escape, render_report, write_report
from roleagent.types import Diagnosis, DiagnosisStatus

HISTORY = [
    {"iteration": 0, "success/heldout": 0.5, "heldout/low": 0.45, "heldout/high": 0.55},
    {
        "iteration": 1,
        "success/train": 0.5,
        "failure_types": {"wrong object": 3, "loops": 1},
        "phase_seconds": {"update": 2.0},
    },
    {"iteration": 2, "success/train": 0.6, "success/heldout": 0.75, "heldout/low": 0.7, "heldout/high": 0.8},
]


def diagnosis(**changes: object) -> Diagnosis:
    fields: dict[str, object] = {
        "trajectory_id": "t",
        "task_id": "home-1",
        "environment": "household",
        "run_id": "r",
        "iteration": 1,
        "policy_version": 0,
        "status": DiagnosisStatus.VALID,
        "failure_type": "wrong object",
        "root_cause": "took a cup",
        "critical_step": 3,
        "lesson": "read the goal",
    }
    return Diagnosis(**{**fields, **changes})  # type: ignore[arg-type]


def test_report_gives_the_gain_the_types_and_an_example(tmp_path: Path) -> None:
    path = write_report(
        tmp_path / "report", HISTORY, run_id="r-1", config={"seed": 3, "token": "x"}, diagnoses=[diagnosis()]
    )
    text = path.read_text(encoding="utf-8")
    assert "**75.0% (70.0% to 80.0%)**" in text
    assert "+25.0 points" in text
    assert "| wrong object | 3 | 75.0% |" in text
    assert "task `home-1`, iteration 1, step 3: took a cup Lesson: read the goal" in text
    assert "| `seed` | 3 |" in text
    assert "| `token` | \\*\\*\\* |" in text
    for line in text.splitlines():
        if line.startswith("!["):
            assert (path.parent / line.partition("](")[2].rstrip(")")).is_file()
    assert "the first and the last value. Memory: the most" in text, "what the summary's columns are"
    assert "counted whole, so the sum is more than the time on the clock" in text
    assert text.count("![") == 3  # success, failure types, phases


def test_the_cost_table_stands_beside_the_papers_shares() -> None:
    phases = {"rollout": 6.0, "update": 3.0, "scoring": 0.5}
    row = {"iteration": 1, "phase_seconds": phases, "rollout_time/prediction_seconds": 1.5}
    text = render_report([row], run_id="r", config={}, costs=cost_table([row], {1: Timing(10.0)}))
    assert "| prediction | 1.500 | 15.00% | 1.500 | 3.59% |" in text
    assert "| update | 3.000 | 30.00% | 3.000 |  |" in text
    assert "takes 1.500 s, 15.0% of the step" in text
    assert "## Cost" not in render_report([row], run_id="r", config={})


def test_quarantined_diagnoses_are_no_examples() -> None:
    quarantined = diagnosis(status=DiagnosisStatus.QUARANTINED)
    assert "took a cup" not in render_report(HISTORY, run_id="r", config={}, diagnoses=[quarantined])


def test_untrusted_words_bring_in_no_markup() -> None:
    nasty = "a | b\n# head ![x](http://evil/x.png) <script> `code` @someone"
    text = render_report(
        [{"iteration": 1, "failure_types": {nasty: 1}}],
        run_id="r",
        config={},
        diagnoses=[diagnosis(failure_type=nasty)],
    )
    assert "<script>" not in text
    assert "![" not in text
    assert "http://" not in text
    assert "\n# head" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| a ")]
    assert row.replace("\\|", "").count("|") == 4


@given(st.text())
def test_escaped_text_is_one_line_without_bare_specials(text: str) -> None:
    escaped = escape(text, limit=10_000)
    assert "\n" not in escaped
    bare = escaped.replace("\\\\", "")
    assert not any(c in "`*_[]<>|~$&" and (i == 0 or bare[i - 1] != "\\") for i, c in enumerate(bare))


def test_links_lose_their_credentials() -> None:
    text = render_report([], run_id="r", config={}, links={"MLflow": "http://u:p@127.0.0.1:5000/#/x"})
    assert "- MLflow: <http://***@127.0.0.1:5000/#/x>" in text


def test_an_address_that_no_browser_opens_is_shown_as_text() -> None:
    text = render_report([], run_id="r", config={}, links={"checkpoint": "s3://bucket/r`uns/<b>|"})
    assert "- checkpoint: `s3://bucket/runs/b`" in text


def test_groups_with_equal_rewards_are_not_called_won_or_lost() -> None:
    # Of four tasks two were won throughout, but one of them with rewards that differ by the prediction reward.
    row = {"iteration": 1, "groups/all_win": 0.5, "groups/all_fail": 0.0, "groups/degenerate": 0.25}
    text = render_report([row], run_id="r", config={})
    assert "| groups with equal rewards | 25.0% | 25.0% |" in text
    assert "all won" not in text


def test_advice_follows_the_numbers() -> None:
    dead = [{"iteration": n, "groups/degenerate": 0.8} for n in range(3)]
    assert "`rollout.group_size`" in suggestions(dead)[0]
    assert suggestions(dead)[0].startswith("80% of the groups have equal rewards")
    assert suggestions([{"iteration": 1, "groups/degenerate": 0.2}])[0].startswith("Nothing stands out")
    falling = [{"iteration": n, "success/heldout": s} for n, s in enumerate([0.5, 0.8, 0.6])]
    assert "80% at iteration 1" in suggestions(falling)[0]
    rising = [{"iteration": n, "success/heldout": s} for n, s in enumerate([0.5, 0.6, 0.7])]
    assert "was highest at the end" in suggestions(rising)[0]
