import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlightning.errors import TaskError
from agentlightning.tasks import check_tasks, load_tasks, split


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_tasks_are_one_json_value_a_line(tmp_path):
    text = '\ufeff{"q": "a\u2028b"}\r\n\n["list"]\n"text"\n3\n'
    assert load_tasks(write(tmp_path / "t.jsonl", text)) == [{"q": "a\u2028b"}, ["list"], "text", 3]


def test_tasks_are_one_json_list(tmp_path):
    assert load_tasks(write(tmp_path / "t.json", '[\n {"q": 1},\n {"q": 2}\n]\n')) == [{"q": 1}, {"q": 2}]
    assert load_tasks(write(tmp_path / "t.json", '[{"q": 1}, {"q": 2}]')) == [{"q": 1}, {"q": 2}]


def test_lines_that_are_lists_are_tasks(tmp_path):
    assert load_tasks(write(tmp_path / "t.jsonl", "[1, 2]\n[3]\n")) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"q": 1}\n\n{"q": 2,}' + "x" * 200 + "\n", r"line 3: not JSON .*: \{\"q\": 2,\}x{71}$"),
        ('[\n{"q": 1},\n{"q": oops}\n]', r"line 3: not JSON"),
        ('{"q": NaN}', r"line 1: NaN is not JSON"),
        (b'{"q": 1}\n{"q": "\xff"}', r"line 2: not UTF-8 \(byte 0xff\)"),
        ("\n \n", r"holds no task"),
        ("[]", r"holds no task"),
    ],
)
def test_a_bad_line_is_shown_with_its_number_and_its_first_80_characters(tmp_path, text, says):
    with pytest.raises(TaskError, match=says) as caught:
        load_tasks(write(tmp_path / "bad.jsonl", text))
    assert "\n" not in str(caught.value) and "bad.jsonl" in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(TaskError, match=r"nowhere.jsonl cannot be read: No such file"):
        load_tasks(tmp_path / "nowhere.jsonl")


class Rows:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return {"q": i}


class Columns(Rows):
    def __getitem__(self, i):
        raise KeyError(i)


def test_any_sequence_is_a_data_set():
    assert check_tasks(Rows()) == [{"q": 0}, {"q": 1}]
    assert check_tasks(("a", "b")) == ["a", "b"]


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        (None, "no tasks: pass train"),
        ([], "train is empty"),
        ("train.jsonl", r"train is a str.*load_tasks"),
        ({"q": 1}, "train is a dict"),
        (3, "train is a int"),
        (Columns(), "without items by position"),
        ([{"q": 1}, {"q": {1}}], r"train\[1\] is not a JSON value \(dict\): \{'q': \{1\}\}"),
        ([float("nan")], r"train\[0\] is not a JSON value"),
    ],
)
def test_what_is_no_data_set_is_refused_by_name(tasks, says):
    with pytest.raises(TaskError, match=says):
        check_tasks(tasks, "train")


@given(st.lists(st.integers(), max_size=50), st.floats(0, 1), st.integers())
def test_a_split_loses_and_repeats_nothing_and_is_the_same_again(tasks, fraction, seed):
    items = [(i, task) for i, task in enumerate(tasks)]
    left, right = split(items, fraction, seed=seed)
    assert sorted(left + right) == items and left == sorted(left) and right == sorted(right)
    assert len(left) == round(len(items) * fraction)
    assert split(items, fraction, seed=seed) == (left, right)


def test_another_seed_splits_otherwise_and_a_bad_fraction_is_refused():
    assert split(range(100), 0.5, seed=1) != split(range(100), 0.5, seed=2)
    with pytest.raises(TaskError, match=r"fraction=1\.5"):
        split([1], 1.5)


def test_a_loaded_file_survives_a_round_trip(tmp_path):
    tasks = [{"q": "\u00e9\u4e2d", "n": 1e300, "l": [None, True]}]
    assert load_tasks(write(tmp_path / "t.jsonl", json.dumps(tasks[0]))) == tasks
