"""Games as PDDL: what is written is well formed and known to the domain, and reading gives back the game."""

from __future__ import annotations

import json
import re

import pytest
from household_games import DATA, kitchen, real_games

from roleagent.environments.household.demonstrations import demonstrate
from roleagent.environments.household.engine import admissible, apply, is_won
from roleagent.environments.household.game import Game
from roleagent.environments.household.generator import LEVELS, generate, task_id
from roleagent.environments.household.pddl import game_file, problem_text, read_problem
from roleagent.environments.household.words import room_text
from roleagent.errors import EnvironmentFault

SAMPLE = [task_id(level, "train", index) for level in LEVELS for index in range(12)]


def domain() -> str:
    return (DATA / "domain.pddl").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", SAMPLE)
def test_reading_gives_back_the_game(text: str) -> None:
    game = generate(text)
    again = read_problem(problem_text(game), game.goal_text)
    assert again.receptacles == tuple(game.receptacles)
    assert again.things == game.things
    assert (again.goal, again.goal_text, again.start) == (game.goal, game.goal_text, game.start)
    assert room_text(again) == room_text(game)
    state, other = game.start, again.start
    for step in demonstrate(text, max_steps=200).steps:
        assert admissible(game, state) == admissible(again, other)
        state, said, _ = apply(game, state, step.action)
        other, heard, _ = apply(again, other, step.action)
        assert said == heard
    assert is_won(again, other)


@pytest.mark.parametrize("text", SAMPLE)
def test_what_is_written_is_known_to_the_domain(text: str) -> None:
    problem = problem_text(generate(text), "x")
    block = domain()[domain().index("(:predicates") : domain().index("(:functions")]
    arity = {name: arguments.count("?") for name, arguments in re.findall(r"^ +\((\w+)(.*?)\) +;", block, re.M)}
    types = set(re.findall(r"^ +(\w+)$", domain()[domain().index("(:types") : domain().index("(:predicates")], re.M))
    depth = 0
    for character in problem:
        depth += (character == "(") - (character == ")")
        assert depth >= 0
    assert depth == 0
    declared = dict(re.findall(r"(\S+) - (\w+)\n", problem[: problem.index("(:init")]))
    assert set(declared.values()) <= types
    facts = re.findall(r"\((\w+) ([^()]+)\)", problem[problem.index("(:init") : problem.index("(:goal")])
    assert len(facts) > 20
    assert len(set(facts)) == len(facts)
    for name, arguments in facts:
        assert arity[name] == len(arguments.split())
        assert set(arguments.split()) <= set(declared)
    goal = problem[problem.index("(:goal") :]
    for name, arguments in re.findall(r"\((\w+) ((?:\?\w+ ?|\w+Type ?)+)\)", goal):
        assert arity[name] == len(arguments.split())
    assert set(re.findall(r"\w+Type\b", goal)) - {"objectType", "receptacleType"} <= set(declared)


def test_sections_are_those_of_the_data() -> None:
    def skeleton(problem: str) -> list[str]:
        return re.findall(r"\((?:define|problem|:\w+)", problem)

    assert skeleton(problem_text(kitchen())) == skeleton(real_games("valid_seen")[0]["pddl_problem"])


def test_a_game_with_states_and_open_doors_survives() -> None:
    game = kitchen()
    start = game.start._replace(opened=0b011, flags=(4, 8, 1, 2, 16, 0))
    changed = Game(game.receptacles, game.things, game.can_contain, game.goal, game.goal_text, start, {3: (0,)})
    again = read_problem(problem_text(changed), game.goal_text)
    assert again.start == start
    assert again.inside == {3: (0,)}
    assert "isReceptacleObject" in again.things[3].can


def test_real_walkthroughs_win() -> None:
    types = set()
    for record in real_games("valid_seen"):
        game = read_problem(record["pddl_problem"], record["task"])
        assert game.goal.task_type == record["id"].split("-")[0]
        types.add(game.goal.task_type)
        state = game.start
        assert not is_won(game, state)
        for command in record["walkthrough"]:
            assert command in admissible(game, state)
            state, _, valid = apply(game, state, command)
            assert valid
        assert is_won(game, state)
    assert len(types) == 6


def test_goals_are_stated_as_in_the_data() -> None:
    def conditions(problem: str) -> list[str]:
        goal = problem[problem.index("(:goal") :]
        return sorted(re.findall(r"\(\w+ (?:\?\w+ ?|\w+Type ?)+\)", goal)) + re.findall(
            r"\(not \(= \?o1 \?o2\)\)", goal
        )

    seen = set()
    for record in real_games("valid_seen"):
        game = read_problem(record["pddl_problem"], record["task"])
        assert conditions(problem_text(game)) == conditions(record["pddl_problem"])
        seen.add(game.goal.task_type)
    assert len(seen) == 6


def test_game_file() -> None:
    game = generate("household-small-train-000004")
    actions = [step.action for step in demonstrate("household-small-train-000004").steps]
    record = json.loads(game_file(game, domain(), "say UNKNOWN GOAL!", actions, "trial_4"))
    assert record["grammar"] == f"say {game.goal_text}!"
    assert record["pddl_domain"] == domain()
    assert record["walkthrough"] == actions
    assert record["solvable"] is True
    assert "(problem trial_4)" in record["pddl_problem"]
    assert list(record) == ["pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"]


def test_foreign_problems_are_refused() -> None:
    with pytest.raises(EnvironmentFault, match="not an ALFWorld problem"):
        read_problem("(define (problem x))", "put a mug in shelf.")
    text = problem_text(kitchen())
    with pytest.raises(EnvironmentFault, match="none of ALFWorld's six"):
        read_problem(text[: text.index("(:goal")] + "(:goal (and)))", "put a mug in shelf.")
