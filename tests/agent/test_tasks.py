import collections
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import sys
import uuid

import datasets
import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentlightning
from agentlightning.agent.tasks import check_tasks, load_tasks, split
from agentlightning.errors import MissingExtra, TaskError
from agentlightning.records.json_values import exact_json, is_json


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
    with pytest.raises(TaskError, match=r"nowhere.jsonl cannot be read: No such file or directory$"):
        load_tasks(tmp_path / "nowhere.jsonl")
    with pytest.raises(TaskError, match=r"~no-such-user/t.jsonl cannot be read: No such file"):
        load_tasks("~no-such-user/t.jsonl")
    with pytest.raises(TaskError, match=r'some/dataset cannot be read: .*load_dataset\(NAME\)\["train"\]'):
        load_tasks("some/dataset")


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
    assert check_tasks(range(9), most=2) == [0, 1]
    rows = datasets.Dataset.from_list([{"q": "a", "n": 1}, {"q": "b", "n": 2}])
    assert check_tasks(rows) == [{"q": "a", "n": 1}, {"q": "b", "n": 2}]
    assert check_tasks(rows, most=1) == [{"q": "a", "n": 1}]
    assert check_tasks(rows.with_format("numpy")) == [{"q": "a", "n": 1}, {"q": "b", "n": 2}]


FRAME = pandas.DataFrame({"q": ["a", "b"], "n": [1.5, None]})


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        (None, "no tasks: pass train"),
        ([], "train is empty"),
        ('[{"q": 1}]', "train is JSON as text: pass json.loads"),
        ("https://host/train.jsonl", "train='https://host/train.jsonl' is a URL: download"),
        ({"q": 1}, r"train is a dict: .*pass \[task\]"),
        ({"q": ["a", "b"], "n": [1, 2]}, "one list for each column; pass a list of rows"),
        (3, "train is an int: expected a list"),
        (b"train.jsonl", "train is a bytes: expected a list"),
        (dict, "train is a type: .*not a class"),
        ({"a", "b"}, r"train is a set: .*sorted\("),
        ((task for task in "ab"), r"train is a generator: .*list\("),
        (map(str, [1]), r"train is a map: .*list\("),
        (FRAME, r'train is a pandas.DataFrame: pass df.to_dict\("records"\)'),
        (FRAME["q"], r"train is a pandas.Series: pass .to_list\(\)"),
        (pyarrow.table({"q": ["a"]}), r"train is a pyarrow.Table: pass table.to_pylist\(\)"),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_list([{"q": 1}])),
            r"train is a datasets.DatasetDict: .*dataset\['train'\]",
        ),
        (
            datasets.IterableDataset.from_generator(lambda: iter([{"q": 1}])),
            r"train is a datasets.IterableDataset: .*list\(",
        ),
        (Columns(), "train is a tests.*Columns without items by position|test_tasks.Columns without items by position"),
        ([{"q": 1}, None], r"train\[1\] is None"),
        (FRAME.to_dict("records"), r"train\[1\]\['n'\] is nan: .*None"),
    ],
)
def test_what_is_no_data_set_is_refused_with_what_would_be_one(tasks, says):
    with pytest.raises(TaskError, match=says) as caught:
        check_tasks(tasks, "train")
    assert "\n" not in str(caught.value)


def test_a_column_of_a_data_set_that_is_no_json_is_named_at_its_place():
    rows = datasets.Dataset.from_dict(
        {"q": ["a", "b"], "when": [None, datetime.datetime(2020, 1, 1)], "score": [1.0, float("nan")]}
    )
    with pytest.raises(TaskError, match=r"^train\[1\]\['when'\] is a datetime: use .isoformat\(\)"):
        check_tasks(rows, "train")
    with pytest.raises(TaskError, match=r"^train\[1\]\['score'\] is nan: .*use None"):
        check_tasks(rows.remove_columns("when"), "train")


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = 1


NamedPoint = collections.namedtuple("NamedPoint", "x")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (datetime.datetime(2020, 1, 1), r"is a datetime: use .isoformat\(\)"),
        (datetime.date(2020, 1, 1), r"is a date: use .isoformat\(\)"),
        (datetime.timedelta(1), r"is a timedelta: use .total_seconds\(\)"),
        (pandas.Timestamp("2020-01-01"), r"is a pandas.Timestamp: use .isoformat\(\)"),
        (pandas.NaT, "use None where a value is missing"),
        (pandas.NA, "use None where a value is missing"),
        (float("nan"), "is nan: .*use None"),
        (numpy.float32("nan"), "is nan: .*use None"),
        (float("-inf"), "is -inf"),
        (numpy.datetime64("2020-01-01"), r"is a numpy.datetime64: use str\("),
        (numpy.array(["2020-01-01"], "M8[D]"), r"is a numpy.ndarray: use .astype\(str\).tolist\(\)"),
        (1j, r"is a complex: use str\("),
        (2**64, r"an integer of 65 bits: .*str\("),
        (decimal.Decimal("1.10"), r"is a Decimal: use float\(.*str\("),
        ({1, 2}, r"is a set: use sorted\("),
        (b"x", r"is a bytes: use .decode\(\)"),
        (uuid.UUID(int=0), r"is a UUID: use str\("),
        (pathlib.PurePosixPath("a"), r"is a PurePosixPath: use str\("),
        (NamedPoint(1), r"NamedPoint: use ._asdict\(\)"),
        (Point(1), r"Point: use dataclasses.asdict\("),
        (Colour.RED, "Colour: use .value"),
        (map(str, [1]), r"is a map: use list\("),
        ("\ud800", "half of a surrogate pair"),
        ({1: "a"}, r"has the key 1, an int: keys are text; use str\("),
        (object(), "is an object: a JSON value is text"),
    ],
)
def test_a_value_that_is_no_json_is_named_at_its_place_with_what_would_make_it_one(value, says):
    task = {"question": "a" * 500, "deep": [{"ok": 1}, {"here": value}]}
    with pytest.raises(TaskError, match=r"^train\[1\]\['deep'\]\[1\]\['here'\] .*" + says) as caught:
        check_tasks([{"question": "b"}, task], "train")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_a_task_that_is_nested_too_deep_is_refused_by_name():
    task = []
    for _ in range(200):
        task = [task]
    with pytest.raises(TaskError, match=r"train\[0\]\[0\].* is nested more than 128 levels deep"):
        check_tasks([task], "train")


def test_numbers_and_arrays_of_numpy_and_tuples_become_what_they_equal():
    task = {
        "int": numpy.int64(3),
        "float": numpy.float32(0.5),
        "double": numpy.float64(0.1),
        "bool": numpy.bool_(True),
        "text": numpy.str_("a"),
        "array": numpy.arange(4).reshape(2, 2),
        "messages": numpy.array([{"role": "user", "n": numpy.int8(1)}], dtype=object),
        "tuple": (1, (2, "x")),
    }
    (made,) = check_tasks([task])
    assert made == {
        "int": 3, "float": 0.5, "double": 0.1, "bool": True, "text": "a", "array": [[0, 1], [2, 3]],
        "messages": [{"role": "user", "n": 1}], "tuple": [1, [2, "x"]],
    }  # fmt: skip
    assert is_json(made) and not is_json(task)
    assert isinstance(task["int"], numpy.int64), "the user's own task is left as it is"


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSONS)
def test_what_is_json_already_is_taken_as_it_is(value):
    if is_json(value):  # no halves of surrogate pairs
        assert exact_json(value, "x") is value


# --------------------------------------------------------------------------- files of other formats

ROWS = [{"q": "a", "n": 1}, {"q": "b", "n": 2}]


def test_a_path_is_a_data_set_wherever_tasks_are_taken(tmp_path):
    file = write(tmp_path / "t.jsonl", '{"q": 1}\n{"q": 2}\n')
    assert check_tasks(file) == check_tasks(str(file)) == [{"q": 1}, {"q": 2}]
    assert check_tasks(file, most=1) == [{"q": 1}]


def test_csv_and_tsv_rows_are_tasks_of_texts(tmp_path):
    text = 'q,n\r\n"a, ""b""\r\nc",1\r\n\r\nd\u2028e,\r\n'
    wanted = [{"q": 'a, "b"\r\nc', "n": "1"}, {"q": "d\u2028e", "n": ""}]
    assert load_tasks(write(tmp_path / "t.csv", text)) == wanted
    assert load_tasks(write(tmp_path / "bom.csv", "\ufeff" + text)) == wanted
    assert load_tasks(write(tmp_path / "t.TSV", "q\tn\na,b\t1\n")) == [{"q": "a,b", "n": "1"}]
    long = "x" * 200_000
    assert load_tasks(write(tmp_path / "long.csv", f"q\n{long}\n")) == [{"q": long}]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_how_a_file_is_read(tmp_path, encoding):
    assert load_tasks(write(tmp_path / "t.jsonl", '{"q": "é"}\n'.encode(encoding))) == [{"q": "é"}]


def test_parquet_and_saved_data_sets_give_the_rows_they_were_made_from(tmp_path):
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "t.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    assert load_tasks(tmp_path / "t.parquet") == load_tasks(tmp_path / "saved") == ROWS


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("t.csv", "q,n\na,1\nb\n", r"t.csv, line 3: 1 cells under 2 columns \(q, n\): b"),
        ("t.csv", "q,n\na,1,2\n", "line 2: 3 cells under 2 columns"),
        ("t.csv", 'q,n\n"a,1\nb,2\n', "t.csv, line 2: .*end of data"),
        ("t.csv", "q,q\na,1\n", "line 1: two columns are named 'q'"),
        ("t.csv", "q,\na,1\n", "line 1: column 2 has no name"),
        ("t.csv", "q;n\na;1\n", "separated by ';', expected ','"),
        ("t.csv", "q,n\n", "holds no task"),
        ("t.csv", "", "holds no task"),
        ("t.csv", b"q\n\xff\n", "line 2: not UTF-8"),
        ("t.json", '{\n "version": 1,\n "data": [{"q": 1}]\n}', r"one JSON object \(version, data\), .*\['data'\]"),
        ("t.json", '{"q": "a"}', "one JSON object .*list of one task"),
        ("t.jsonl", '{\n "q": 1\n}\n', r"one JSON object \(q\)"),
        ("t.jsonl", '{"q": 1}\n{"n": 99999999999999999999999}\n', r"line 2: task\['n'\] is an integer of"),
        ("t.jsonl", b"\x1f\x8b\x08", "is compressed"),
        ("t.jsonl", b"PAR1", "name it .parquet"),
        ("t.parquet", b"q,n\n", "no Parquet file: it begins with b'q,n"),
        ("t.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
        ("t.xlsx", b"PK", "save it as CSV"),
        ("t.yaml", "- q", ".yaml is no format of tasks"),
    ],
)
def test_a_file_that_holds_no_tasks_is_refused_with_its_place(tmp_path, name, data, says):
    with pytest.raises(TaskError, match=says) as caught:
        load_tasks(write(tmp_path / name, data))
    assert "\n" not in str(caught.value)


def test_a_column_that_is_no_json_is_named_with_its_row(tmp_path):
    file = parquet(tmp_path / "t.parquet", q=["a", "b"], when=[None, datetime.datetime(2020, 1, 1)])
    with pytest.raises(TaskError, match=r"t.parquet, row 2: task\['when'\] is a datetime: use .isoformat\(\)"):
        load_tasks(file)


def test_a_folder_is_a_saved_data_set_or_told_what_is_in_it(tmp_path):
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "splits")
    with pytest.raises(TaskError, match=r"holds several data sets \(train\)"):
        load_tasks(tmp_path / "splits")
    (tmp_path / "plain").mkdir()
    write(tmp_path / "plain" / "a.csv", "q\n1\n")
    with pytest.raises(TaskError, match=r"is a folder, and no data set .*pass one of its files \(a.csv\)"):
        load_tasks(tmp_path / "plain")


@pytest.mark.parametrize(("module", "name"), [("pyarrow", "t.parquet"), ("datasets", "saved")])
def test_a_missing_library_is_one_line_that_says_what_to_install(tmp_path, monkeypatch, module, name):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    parquet(tmp_path / "t.parquet", q=["a"])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf'needs {module}: pip install ".*\[data\]"'):
        load_tasks(tmp_path / name)


def test_load_tasks_is_public():
    assert agentlightning.load_tasks is load_tasks


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
