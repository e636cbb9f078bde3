"""A game's language is read from its own grammar, and what is not ALFWorld's is refused."""

from __future__ import annotations

import pytest
from alfworld_store import first_records
from household_games import DATA
from hypothesis import given
from hypothesis import strategies as st

from roleagent.environments.alfworld.grammar import NATIVE, OLD, Language, read_language
from roleagent.environments.alfworld.records import Record, act, build, check, commands, opening, won
from roleagent.errors import EnvironmentFault
from tests.differential.games import logic, old_logic

SENTENCE = "put a mug in shelf."


def with_goal(grammar: str) -> str:
    return grammar.replace("UNKNOWN GOAL", SENTENCE)


def test_both_grammars_are_told_apart() -> None:
    domain, grammar = logic()
    assert read_language(domain, with_goal(grammar)) == (NATIVE, SENTENCE)
    domain, grammar = old_logic()
    assert read_language(domain, with_goal(grammar)) == (OLD, SENTENCE)


def test_white_space_comments_and_a_help_rule_of_its_own_make_no_difference() -> None:
    domain, grammar = logic()
    start = grammar.index("action help")
    text = grammar[grammar.index('feedback :: "', start) + len('feedback :: "') : grammar.rindex('";')]
    rule = f'{{"help.feedback": [{{"rhs": "{text}"}}]}}'.replace("\n", "\\n")
    action = f'action help {{ template :: "help"; feedback :: "#help.feedback#"; grammar :: """{rule}"""; }}'
    packed = grammar[:start] + action
    loose = domain.replace("\n(:action", "\n;; an action\n  (:action").replace("(and", "(  and")
    assert read_language(loose, with_goal(packed)) == (NATIVE, SENTENCE)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("You pick up the {o.name}", "You grab the {o.name}", "neither ALFWorld's present nor its old one"),
        ("look around your current location", "look here", "unknown text of `help`"),
        ("Your task is to: ", "Do: ", "not an ALFWorld game"),
        ('"condition": "openable(r:receptacle)"', '"condition: openable(r:receptacle)"', "no JSON"),
        ("grammar ::", "rules ::", "does not begin with its rules"),
    ],
)
def test_another_grammar_is_refused(before: str, after: str, told: str) -> None:
    domain, grammar = logic()
    assert before in grammar
    with pytest.raises(EnvironmentFault, match=told):
        read_language(domain, with_goal(grammar.replace(before, after, 1)))


def test_another_domain_is_refused() -> None:
    domain, grammar = logic()
    with pytest.raises(EnvironmentFault, match="domain that is not ALFWorld's"):
        read_language(domain.replace("(not (holdsAny ?a))  ; agent's", "; agent's"), with_goal(grammar))
    with pytest.raises(EnvironmentFault, match="domain that is not ALFWorld's"):
        read_language(domain, with_goal(old_logic()[1]))  # its `help` has no words


def game(language: Language) -> Record:
    (record,) = first_records(1)
    domain, grammar = logic() if language == NATIVE else old_logic()
    walkthrough = tuple(str(command) for command in record["walkthrough"])  # type: ignore[attr-defined]
    return Record(str(record["id"]), str(record["task"]), str(record["pddl_problem"]), walkthrough, domain, grammar)


def test_an_old_game_is_played_in_its_own_words() -> None:
    record = game(OLD)
    check(record)
    real = build(record)
    assert opening(real).endswith("\n\nYour task is to: look at alarmclock under the desklamp.")
    state = real.game.start
    assert "help" not in commands(real, state)
    told = []
    for command in (
        "help",
        "go to desk 1",
        "take mug 1 from desk 1",
        "move mug 1 to desk 1",
        "put mug 1 in desk 1",
        "put mug 1 in/on desk 1",
    ):
        listed = commands(real, state)
        state, text, valid = act(real, state, command)
        assert valid == (command in listed)
        told.append(text)
    assert told[0] == told[3] == told[4] == "Nothing happens."
    assert told[1].startswith("You arrive at loc 14. On the desk 1, you see a alarmclock 2, a book 1,")
    assert told[2] == "You pick up the mug 1 from the desk 1."
    assert told[5] == "You put the mug 1 in/on the desk 1."
    assert not won(real, state)


@pytest.mark.parametrize("language", [NATIVE, OLD, Language(put=True), Language(help=False)])
@given(names=st.lists(st.sampled_from(["mug 1", "desk 2", "cd 13"]), min_size=2, max_size=2))
def test_a_listed_command_is_understood_as_it_was_meant(language: Language, names: list[str]) -> None:
    inner = (f"move {names[0]} to {names[1]}", f"take {names[0]} from {names[1]}", "look", "help")
    listed = language.listed(inner)
    assert sorted(map(language.inward, listed)) == sorted(inner if language.help else inner[:3])
    assert (f"put {names[0]} in/on {names[1]}" in listed) == language.put
    if language.put:
        assert language.inward(inner[0]) == ""


def test_the_grammar_files_are_those_of_the_data() -> None:
    assert logic()[1] == (DATA / "grammar_template.twl2").read_text(encoding="utf-8")
