"""ALFWorld under the contract: real games, the paper's task types, the expert, demonstrations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from household_games import DATA

from roleagent.environments.alfworld.alfworld import AlfWorld
from roleagent.environments.alfworld.demonstrations import demonstrate
from roleagent.environments.alfworld.games import open_games, training_games
from roleagent.environments.alfworld.records import TASK_TYPES, build, commands
from roleagent.environments.alfworld.sources import open_source
from roleagent.environments.checker import check_environment
from roleagent.environments.household.demonstrations import DEFAULT_HABITS
from roleagent.environments.registry import make_environment
from roleagent.errors import ConfigError, EnvironmentFault

pytestmark = pytest.mark.usefixtures("games_here")


def test_it_keeps_the_contract() -> None:
    check_environment(
        lambda: make_environment("alfworld"),
        episodes=8,
        solve=lambda task: [step.action for step in demonstrate(task.task_id).steps],
    ).raise_for_findings()


def test_splits_and_task_types() -> None:
    environment = AlfWorld()
    heldout, train = environment.tasks("heldout"), environment.tasks("train")
    assert (len(heldout), len(train)) == (140, 36)
    assert Counter(task.task_type for task in heldout) == {
        "Pick": 35,
        "Look": 13,
        "Clean": 27,
        "Heat": 16,
        "Cool": 25,
        "Pick2": 24,
    }
    assert all(task.task_id.startswith("valid_seen/") and task.split == "heldout" for task in heldout)
    assert {task.task_id.split("/")[0] for task in train} == {"train"}
    for task in heldout:
        game = open_games("valid_seen").load(task.task_id.partition("/")[2])
        assert TASK_TYPES[game.game.goal.task_type] == task.task_type
    with pytest.raises(ConfigError, match="unknown split"):
        environment.tasks("test")  # type: ignore[arg-type]


def test_a_game_step_by_step() -> None:
    environment = AlfWorld()
    goal, first = environment.reset(
        "valid_seen/look_at_obj_in_light-Bowl-None-DeskLamp-301/trial_T20190909_150719_492274"
    )
    assert goal == "examine the bowl with the desklamp."
    assert first.text.startswith("You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk")
    assert "go to desk 1" in first.admissible
    assert not environment.step("GO TO DESK 1").valid, "letter case matters, as in the stock engine"
    assert not environment.step("go to  desk 1").valid, "so does white space within a command"
    there = environment.step("  go to desk 1\n")
    assert there.valid
    assert there.observation.text.startswith("You arrive at desk 1. On the desk 1, you see a alarmclock 1, a bowl 1")
    for action in ("take bowl 1 from desk 1", "go to dresser 1"):
        assert environment.step(action).reward == 0.0
    won = environment.step("use desklamp 1")
    assert (won.reward, won.score, won.done, won.success) == (1.0, 1.0, True, True)
    with pytest.raises(EnvironmentFault, match="without a running episode"):
        environment.step("look")


@pytest.mark.parametrize(
    ("task_id", "told"),
    [
        ("valid_seen/nothing/trial_1", "no such trial"),
        ("heldout/x/y", "split one of train, valid_seen, valid_unseen"),
        ("train", "are <split>/<task>/<trial>"),
        ("valid_unseen/x/y", "the games played here are those of train and valid_seen"),
    ],
)
def test_unknown_tasks(task_id: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        AlfWorld().reset(task_id)


def test_options() -> None:
    with pytest.raises(ConfigError, match="choose valid_seen, valid_unseen or dev"):
        AlfWorld(heldout="train")
    with pytest.raises(ConfigError, match="has no option"):
        make_environment("alfworld", level="small")
    with pytest.raises(ConfigError, match=r"no ALFWorld games of split valid_unseen in .*roleagent data fetch"):
        AlfWorld(heldout="valid_unseen").tasks("heldout")


def test_development_games_are_left_out_of_training() -> None:
    stock, chosen = AlfWorld(folder=str(DATA)), AlfWorld(heldout="dev", folder=str(DATA))
    everything = {task.task_id for task in stock.tasks("train")}
    train = {task.task_id for task in chosen.tasks("train")}
    development = {task.task_id for task in chosen.tasks("heldout")}
    assert train | development == everything
    assert not train & development
    assert 0.02 < len(development) / len(everything) < 0.06
    # A task with its trials is on one side.
    assert not {name.rsplit("/", 1)[0] for name in train} & {name.rsplit("/", 1)[0] for name in development}
    assert train == set(training_games(str(DATA)))
    assert {task.split for task in chosen.tasks("heldout")} == {"heldout"}
    assert chosen.reset(min(development))[0]
    with pytest.raises(ConfigError, match="the games played here are those of train"):
        chosen.reset("valid_seen/x/y")


def test_environments_share_their_games() -> None:
    first, second = AlfWorld(), AlfWorld()
    assert first.tasks("train") is not None
    for environment in (first, second):
        environment.reset("train/" + open_games("train").source.games[0])
    assert open_games("train") is open_games("train")
    assert first._real is second._real


def test_every_first_list_names_the_room(compact: Path) -> None:
    source = open_source(compact / "games_train.jsonl")
    for name in source.games:
        real = build(source.record(name))
        listed = commands(real, real.game.start)
        assert {c.removeprefix("go to ") for c in listed if c.startswith("go to ")} == set(real.game.receptacle_index)


def test_the_expert_wins_within_fifty_steps() -> None:
    lengths: dict[str, list[int]] = {}
    for task in (*AlfWorld().tasks("heldout"), *AlfWorld().tasks("train")):
        found = demonstrate(task.task_id)
        assert found.success, task.task_id
        assert found.label is None
        lengths.setdefault(task.task_type, []).append(len(found.steps))
    assert set(lengths) == set(TASK_TYPES.values())
    assert all(sum(steps) / len(steps) < 15 for steps in lengths.values())


def test_demonstrations_are_a_function_of_their_arguments() -> None:
    tasks = [task.task_id for task in AlfWorld().tasks("train")]
    labels = Counter()
    for number, task in enumerate(tasks):
        found = demonstrate(task, number, DEFAULT_HABITS, 50, 0.05)
        assert found == demonstrate(task, number, DEFAULT_HABITS, 50, 0.05)
        assert (found.task.environment, found.task.split) == ("alfworld", "train")
        assert found.success == (found.label is None) or len(found.steps) == 50
        labels[found.label.failure_type if found.label else "none"] += 1
    assert len(labels) > 4, "habits make different mistakes in real games too"
    assert labels["none"] > len(tasks) // 3
    assert any(demonstrate(task, 1, None, 50, 0.2) != demonstrate(task, 2, None, 50, 0.2) for task in tasks[:5])


def test_habits_and_tasks_that_do_not_exist() -> None:
    task = AlfWorld().tasks("train")[0].task_id
    with pytest.raises(ConfigError, match="unknown failure type"):
        demonstrate(task, 0, {"laziness": 1.0})
    with pytest.raises(ConfigError, match="no such trial"):
        demonstrate("train/nothing/trial_1")
