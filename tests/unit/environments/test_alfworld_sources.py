"""Games from official folders, archives, compact files and the store: the same games, checked; damage is told."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from alfworld_store import first_records, official_folder
from household_games import DATA

from roleagent.environments.alfworld.adding import add
from roleagent.environments.alfworld.records import Record, build, is_game, read_game_file, task_type
from roleagent.environments.alfworld.sources import Compact, OfficialFolder, Store, find_split, open_source
from roleagent.errors import ConfigError, EnvironmentFault
from tests.differential.games import logic

COUNT = 3


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine."""
    monkeypatch.setenv("ROLEAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "official"))
    return tmp_path / "home"


def records(count: int = COUNT) -> list[Record]:
    domain, grammar = logic()
    found = []
    for value in first_records(count):
        walkthrough = tuple(value["walkthrough"])  # type: ignore[arg-type]
        texts = (str(value[key]) for key in ("id", "task", "pddl_problem"))
        found.append(Record(*texts, walkthrough, domain, grammar))
    return found


def game_files(**changes: object) -> dict[str, str]:
    return {record.game: json.dumps({**json.loads(record.game_file()), **changes}) for record in records()}


def test_every_form_gives_the_same_records(home: Path, tmp_path: Path) -> None:
    official = official_folder(tmp_path / "official", "valid_unseen", game_files())
    with zipfile.ZipFile(tmp_path / "games.zip", "w") as archive:
        for path in sorted(official.rglob("*.tw-pddl")):
            archive.write(path, path.relative_to(official))
        archive.writestr("json_2.1.1/valid_unseen/other/readme.txt", "not a game")
    compact = tmp_path / "compact"
    compact.mkdir()
    for name in ("domain.pddl", "grammar_template.twl2"):
        (compact / name).write_bytes((DATA / name).read_bytes())
    (compact / "mine.jsonl").write_text("".join(json.dumps(value) + "\n" for value in first_records(COUNT)))
    stores = set()
    for path, split in ((official, ""), (tmp_path / "games.zip", ""), (compact / "mine.jsonl", "valid_unseen")):
        (added,) = add(path, split)
        assert (added.split, added.games, added.types) == ("valid_unseen", COUNT, {"Look": COUNT})
        store = open_source(find_split("valid_unseen"))
        assert isinstance(store, Store)
        assert [store.record(game) for game in store.games] == records()
        stores.add(added.path.read_bytes())
    assert len(stores) == 1, "the same games, the same bytes"
    assert added.size < 10_000 * COUNT
    folder = OfficialFolder(official / "json_2.1.1" / "valid_unseen")
    assert [folder.record(game) for game in folder.games] == records()
    small = Compact(compact / "mine.jsonl")
    assert [small.record(game) for game in small.games] == records()


def test_where_games_are_looked_for(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="roleagent data add alfworld PATH"):
        find_split("valid_unseen")
    official = official_folder(tmp_path / "official", "valid_unseen", game_files())
    assert find_split("valid_unseen") == official / "json_2.1.1" / "valid_unseen"
    assert find_split("valid_unseen", str(official / "json_2.1.1")) == official / "json_2.1.1" / "valid_unseen"
    add(official)
    assert find_split("valid_unseen") == home / "data" / "alfworld" / "valid_unseen.zip"
    assert find_split("valid_seen", str(DATA)) == DATA / "games_valid_seen.jsonl.xz"


def test_official_games_that_are_not_played_are_left_out(tmp_path: Path) -> None:
    files = game_files()
    first, second, third = files
    strange = {
        first: files[first],
        second: json.dumps({**json.loads(files[second]), "solvable": False}),
        third: json.dumps(dict(reversed(json.loads(files[third]).items()))),
        "pick_and_place_with_movable_recep-Apple-Pot-Fridge-4/trial_T1": files[first],
        "pick_and_place_simple-AppleSliced-None-Fridge-4/trial_T1": files[first],
    }
    folder = OfficialFolder(official_folder(tmp_path, "train", strange) / "json_2.1.1" / "train")
    assert folder.games == (first, third)
    for game in (second, "nothing/trial_1"):
        with pytest.raises(ConfigError, match="unknown game"):
            folder.record(game)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"grammar": "grammar"}, "this is not an ALFWorld game"),
        ({"pddl_domain": "(define (domain alfred))"}, "domain that is not ALFWorld's"),
        ({"pddl_problem": "(define (problem x))"}, "not an ALFWorld problem"),
        ({"walkthrough": ["look"]}, "walkthrough does not win"),
        ({"walkthrough": ["put mug 1 in/on desk 1"]}, "which is not possible then"),
        ({"walkthrough": [1]}, "a value that is no text"),
        ({"walkthrough": 1}, "cannot be read"),
        ({"grammar": "[1, 2]"}, "this is not an ALFWorld game"),
        ({"pddl_domain": 3}, "a value that is no text"),
    ],
)
def test_a_game_that_is_not_right_is_named(home: Path, tmp_path: Path, change: dict[str, object], told: str) -> None:
    official_folder(tmp_path / "official", "train", game_files(**change))
    with pytest.raises(EnvironmentFault, match=rf"game look_at_obj_in_light-AlarmClock-\S+: .*{told}"):
        add(tmp_path / "official")
    assert list(home.rglob("*.*")) == [], "nothing is stored"


def test_games_that_are_not_there_or_cannot_be_read(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        add(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no ALFWorld games in"):
        add(tmp_path / "empty")
    with pytest.raises(ConfigError, match="unknown split 'test'"):
        add(tmp_path / "empty", "test")
    (tmp_path / "broken.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"archive .* cannot be read"):
        add(tmp_path / "broken.zip")
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="tells no split; give it with --split"):
        add(tmp_path / "mine.jsonl")
    with pytest.raises(ConfigError, match=r"compact games in .* cannot be read"):
        add(tmp_path / "mine.jsonl", "train")
    for name in ("domain.pddl", "grammar_template.twl2"):
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    for line in ("{}", "[1]", "{"):
        (tmp_path / "mine.jsonl").write_text(f"{line}\n")
        with pytest.raises(EnvironmentFault, match=r"mine\.jsonl line 1: "):
            add(tmp_path / "mine.jsonl", "train")
    twice = json.dumps(first_records(1)[0])
    (tmp_path / "mine.jsonl").write_text(f"{twice}\n{twice}\n")
    with pytest.raises(EnvironmentFault, match="is there twice"):
        add(tmp_path / "mine.jsonl", "train")


def test_hostile_archives_are_told(home: Path, tmp_path: Path) -> None:
    files = game_files()
    name = min(files)
    path = tmp_path / "games.zip"

    def pack(text: str) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"json_2.1.1/train/{name}/game.tw-pddl", text)

    pack("[" * 200_000)
    with pytest.raises(EnvironmentFault, match="nested too deeply"):
        add(path)
    pack(files[name])
    whole = path.read_bytes()
    # The two headers of the member: its flags, then its compression.
    for offset, value, told in ((6, 1, "encrypted"), (8, 77, "compression")):
        data = bytearray(whole)
        for header, shift in ((data.index(b"PK\x03\x04"), 0), (data.rindex(b"PK\x01\x02"), 2)):
            data[header + offset + shift] = value
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=rf"archive .* cannot be read: .*{told}"):
            add(path)
    assert list(home.rglob("*.*")) == [], "nothing is stored"


def test_a_damaged_store_says_how_to_mend_it(home: Path, tmp_path: Path) -> None:
    official_folder(tmp_path / "official", "train", game_files())
    (added,) = add(tmp_path / "official")
    whole = added.path.read_bytes()
    middle = len(whole) // 2
    added.path.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(ConfigError, match="add them again with `roleagent data add`"):
        read_all(added.path)
    added.path.write_bytes(whole[:middle])
    with pytest.raises(ConfigError, match="cannot be read"):
        Store(added.path)
    added.path.write_bytes(whole)
    with pytest.raises(ConfigError, match="unknown game"):
        Store(added.path).record("nothing/trial_1")


def read_all(path: Path) -> None:
    store = Store(path)
    for game in store.games:
        store.record(game)


def test_names_of_games() -> None:
    assert task_type("pick_two_obj_and_place-Mug-None-Shelf-3/trial_T2019_1") == "Pick2"
    assert not is_game("pick_two_obj_and_place-Mug-None-Shelf/trial_T2019_1")
    with pytest.raises(EnvironmentFault, match="not named like"):
        task_type("home")


def test_unsolvable_files_are_no_games() -> None:
    (record,) = records(1)
    assert read_game_file(record.game, json.dumps({**json.loads(record.game_file()), "solvable": False})) is None
    assert read_game_file(record.game, "[]") is None
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        read_game_file(record.game, "{")
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        read_game_file(record.game, '{"solvable": true}')


def test_objects_are_of_the_type_that_the_problem_says() -> None:
    (record,) = records(1)
    problem = record.problem.replace("Safe_bar_", "Bathtub_bar_").replace(" SafeType)", " SinkBasinType)")
    names = {place.name: place.kind for place in build(replace(record, problem=problem)).game.receptacles}
    assert names["bathtub 1"] == "SinkBasin", "the word comes from the id, what can be done there from the type"
