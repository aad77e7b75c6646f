"""Answers to math problems: what counts as the same, what does not, and that no text of a model's takes long or runs."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentlightning.errors import ConfigError
from agentlightning.scoring import final_answer, same_answer, score_math
from agentlightning.scoring.answers import LONGEST

LIMIT = 60.0
"""Seconds that all hostile texts together may take on a machine however busy. They take a tenth of one."""

SAME = {
    "options": [("(A)", "a."), ("A", "(a)"), ("B) 12 km", "B"), ("a. 4", "(A) 4"), ("option C", "C"), (r"\text{(D)}", "D")],
    "separators of thousands": [("1,234", "1234"), ("1,234,567.5", 1234567.5), ("[1,000; 2,000]", "1000, 2000")],
    "percent": [("50%", "0.5"), ("0.5", "50%"), ("50", "50%"), ("50 percent", "50%"), (r"5\%", "5%")],
    "prefixes": [
        ("= 42", "42"), ("around 42", "42"), ("x = 42", "42"), ("approximately 3.1 cm", "3.1"), ("≈ 3", "3"),
        ("The answer is 12.", "12"), ("3 + 4 = 7", "7"), ("y = 2x + 1", "2x+1"), ("about $5", "5 dollars"), (r"x \approx 3", "3"),
    ],
    "units": [
        ("1.5 km", "1500 m"), ("72 km/h", "20 m/s"), ("1 hour", "60 minutes"), ("12 hours", "12 h"), ("7 apples", "7"),
        ("12 cm^2", "12 cm²"), ("12 square cm", "12cm^2"), ("5", "5 km"), (r"12\text{ cm}", "12cm"), ("2 1/2 km", "2.5km"),
        ("30°", "30"), (r"30^\circ", "30 degrees"), ("1 m^2", "10000 cm^2"), ("5 kilometers per hour", "5 km/h"),
    ],
    "money": [("$1,500", "1500"), ("1.50 dollars", "$1.5"), ("150 cents", "$1.5"), ("3 million", "3000000"), ("€5", "5 euros")],
    "fractions and roots": [
        (r"\frac{1}{2}", "0.5"), ("1/2", r"\dfrac12"), (r"\sqrt{2}", "1.414"), ("sqrt(8)", r"2\sqrt{2}"), ("2√2", "2.828"),
        (r"3\frac{1}{2}", "3.5"), ("3 1/2", "3.5"), (r"\sqrt[3]{-8}", "-2"), (r"\frac{\sqrt{3}}{2}", "0.866"), ("1/3", "0.333"),
    ],
    "powers and functions": [
        ("2^10", "1024"), ("2^{10}", "1024"), ("2²", "4"), ("2**3**2", "512"), ("-2^2", "-4"), ("6.02*10^23", "6.02e23"),
        (r"6.02 \times 10^{23}", "6.02e23"), ("5!", "120"), ("|−3|", "3"), ("log(100)", "2"), ("ln e", "1"), (r"\pi", "3.14"),
        ("sin(pi/6)", "0.5"), (r"\sin^2 1 + \cos^2 1", "1"), ("e^2", "7.389"),
    ],
    "formulas": [("(x+1)^2", "x^2+2x+1"), ("2xy", "2yx"), (r"\frac{a^2-b^2}{a-b}", "a+b"), (r"x \cdot x", "x^2")],
    "lists": [
        ("1, 2, 3", "[1,2,3]"), ("1 and 2", "1, 2"), ("(1,2)", "1; 2"), ("x=1 or x=2", "1, 2"), ("1,2", "1, 2"),
        (r"\left(3, \frac{1}{2}\right)", "(3, 0.5)"), ("{1,2}", [1, 2]), ([1, "1/2"], "1, 0.5"), ("[1,234]", "1, 234"),
        ("[[1,2],[3,4]]", [[1, 2], [3, 4]]),
    ],
    "text": [("Paris.", "paris"), ("New  York", "new york"), (r"$\frac{3}{4}$", "0.75"), (r"\boxed{7}", "7"), ("**7**", "7")],
    "numbers of Python": [(3, 3.0), (Fraction(1, 3), "1/3"), (Decimal("0.50"), "1/2"), (True, "true"), ("1005", 1000)],
}  # fmt: skip

OTHER = [
    ("(A)", "b."), ("A car", "A"), ("B", "2"), ("5 km", "5 m"), ("5 m", "5 s"), ("1.02", "1"), ("43", "42"), ("x", "y"),
    ("(x+1)^2", "x^2+1"), ("1.005x", "x"), ("1,2,3", "1,2"), ("2,1", "1,2"), ("", "5"), (None, "5"), ("five", "5"), ("2x", "2"),
    ("1 2", "12"), ("2 3", "6"), ("0.001", "0"), ("1/0", "5"), ("-5", "5"), ("50%", "5"), ("nan", "5"), ("inf", "5"),
    ({"answer": 5}, "5"), (b"5", "5"), (float("nan"), "5"), ("5 dollars", "5 euros"), ("5 km^2", "5 km"), ("0^-1", "0"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "right"), [pair for pairs in SAME.values() for pair in pairs])
def test_an_answer_in_another_form_is_the_same(said: Any, right: Any):
    assert same_answer(said, right)
    assert score_math(said, right) == 1.0


@pytest.mark.parametrize(("said", "right"), OTHER)
def test_another_answer_is_not_the_same(said: Any, right: Any):
    assert not same_answer(said, right)
    assert score_math(said, right) == 0.0


def test_numpys_numbers_are_numbers():
    numpy = pytest.importorskip("numpy")
    assert same_answer("3", numpy.float32(3)) and same_answer("3", numpy.int64(3))


def test_the_tolerance_is_relative_to_the_right_answer_and_can_be_chosen():
    assert same_answer("101", "100") and not same_answer("101.1", "100")
    assert same_answer("-0.0099", "-0.01") and not same_answer("0.0098", "0.01")
    assert not same_answer("101", "100", tolerance=0) and same_answer("0.30000000000000004", "0.3", tolerance=0)
    assert same_answer("150", "100", tolerance=0.5)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("so ### ANSWER: 42 ###", "42"),
        ("#### 42\n", "42"),
        ("### Answer\n\n 42\nas I said", "42"),
        ("### Final answer: **7**", "7"),
        ("### 1 ###\nno:\n### 2 ###", "2"),
        ("### Step 1\n\\boxed{3}", "3"),
        ("\\boxed{3}\nno, ### 4", "4"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{ never closed", "never closed"),
        ("## a heading", None),
        ("42", None),
        ("", None),
        ("###", None),
    ],
)
def test_the_last_thing_marked_as_the_answer_is_found(reply: str, answer: str | None):
    assert final_answer(reply) == answer


def test_a_reply_that_marks_nothing_is_the_answer_itself():
    assert score_math(" 42\n", "42") == 1.0
    assert score_math("it may be 42 or else 43", "42") == 0.0
    assert score_math(None, "42") == 0.0


@pytest.mark.parametrize("right", ["", "  ", None, {}, object()])
def test_nothing_to_compare_with_is_refused_rather_than_scored(right: Any):
    with pytest.raises(ConfigError, match=r"^same_answer\(right=.*\): there is nothing to compare with$"):
        same_answer("5", right)


@pytest.mark.parametrize("tolerance", [-0.1, 1.5, float("nan"), True])
def test_a_tolerance_that_is_none_is_refused_by_value(tolerance: float):
    with pytest.raises(ConfigError, match=rf"tolerance={tolerance!r}\): expected a number from 0 to 1"):
        same_answer("5", "5", tolerance=tolerance)


# --------------------------------------------------------------------------- hostile text

HOSTILE = [
    "9**9**9", "9^9^9^9^9", "(" * 5000 + "1" + ")" * 5000, "(" * 400 + "1" + ")" * 400, "-" * 999, "2^" * 400 + "2", "9" * 500_000,
    "1," * 490, "a" * 1000, "1 " * 500, "\\frac" * 200, "\\frac{" * 160, "[" * 999, "{" * 999, "#" * 200_000, "\\boxed{" * 30_000, "$" * 999,
    "1,000" * 200, "and " * 240, "=" * 999, "x=" * 499, "1.1" * 300, "(1)" * 333, "170!" * 200, "9!!!!!", "|" * 900, "\\sqrt" * 190 + "2",
    "km/" * 300, "5" + " /km" * 240, "0" * 999, "\\text{" * 160, "about " * 150, "2 1/2 " * 150, "1e999", "1e-999", "10^308*10^308", "0^0^0",
    "__import__('os').system('touch /nowhere')", "().__class__.__bases__[0].__subclasses__()", "lambda: 0", "exec('1')", "\x00", "\ud800",
    "ﷺ" * 1000, "١٢٣", "1" + "\u0300" * 900, "\\boxed" + " " * 150_000, "### " * 40_000, "\n" * 199_000 + "### x", "tan(pi/2)", "ln 0", "sqrt",
    "1/0", "(0-0)/(0-0)", "log(-1)", "(-1)^0.5", "e^e^e^e^e", "[[[[[[[[1,2],3],4],5],6],7],8],9]", "5 km ^ km ^ 2", "$ $", "% %", "5 ^ %",
]  # fmt: skip


def test_no_text_of_a_models_takes_long_or_is_run_in_a_thread_too():
    done, times = threading.Event(), dict[int, float]()

    def work() -> None:
        try:
            for number, text in enumerate(HOSTILE):
                began = time.thread_time()
                assert score_math(text, "5.5") == 0.0 or text.startswith("5"), text[:40]
                same_answer("5.5", text)
                assert same_answer(text, text), text[:40]
                assert score_math(text + text, text) in (0.0, 1.0)
                times[number] = time.thread_time() - began
        finally:
            done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(LIMIT), f"not done after {len(times)} of {len(HOSTILE)}"
    assert len(times) == len(HOSTILE)
    assert max(times.values()) < 1.0, HOSTILE[max(times, key=lambda number: times[number])][:40]


PIECES = st.sampled_from(
    ["1", "2.5", "9", "x", "y", "km", "(", ")", "[", "]", "{", "}", "|", "+", "-", "*", "/", "^", "**", "!", ",", ";", " ", "\\frac", "\\sqrt",
     "\\boxed{", "###", "%", "$", "°", "and", "sin", "e", "pi", "=", "≈", "million", "²", "√", "\\text{", ".", "per", "square", "a."]
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(st.lists(PIECES, min_size=1, max_size=60).map("".join) | st.text(min_size=1, max_size=300))
def test_whatever_is_said_is_scored_and_equals_itself(text: str):
    if text.strip():
        assert same_answer(text, text)
        assert score_math("5.5", text) in (0.0, 1.0)
    assert score_math(text, "5.5") in (0.0, 1.0)


@settings(deadline=None)
@given(st.text("1,x(+", min_size=LONGEST + 1, max_size=LONGEST + 200) | st.just("1" * (LONGEST + 1)))
def test_an_answer_beyond_the_limit_is_right_only_as_the_same_text(text: str):
    assert not same_answer(text, "1") and not same_answer("1", text + "1")


# --------------------------------------------------------------------------- other programs' values

NUMBERS = st.integers(1, 99) | st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=50)


def expressions() -> st.SearchStrategy[Any]:
    """Expressions of sympy without variables, real and not too large."""
    sympy = pytest.importorskip("sympy")
    leaves = NUMBERS.map(lambda n: sympy.Rational(n.numerator, n.denominator)) | st.just(sympy.pi)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] / (1 + abs(pair[1]))),
            inner.map(lambda one: sympy.sqrt(abs(one))),
            inner.map(lambda one: one**2),
            inner.map(sympy.sin),
        ),
        max_leaves=6,
    )


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_what_sympy_writes_has_the_value_that_sympy_gives_it(data: st.DataObject):
    sympy = pytest.importorskip("sympy")
    expression = data.draw(expressions())
    value, latex, plain = float(expression.evalf(30)), sympy.latex(expression), str(expression)
    if abs(value) > 1e200 or len(latex) > LONGEST or 0 < abs(value) < 1e-6:
        return
    assert same_answer(latex, value, tolerance=1e-6), (latex, value)
    assert same_answer(plain, value, tolerance=1e-6), (plain, value)
    assert not same_answer(latex, value * 1.02 or 0.001)


@given(NUMBERS, st.floats(-0.0098, 0.0098))
def test_a_number_within_the_tolerance_is_right_and_one_beyond_is_not(number: Fraction, off: float):
    assert same_answer(float(number) * (1 + off), number)
    assert not same_answer(float(number) * (1.0105 + abs(off)), number)
    assert not same_answer(-float(number), number)


@given(st.integers(-(10**12), 10**12))
def test_separators_of_thousands_change_nothing(number: int):
    assert same_answer(f"{number:,}", number, tolerance=0)
    assert same_answer(str(number), f"{number:,}", tolerance=0)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.data())
def test_a_list_is_right_only_in_all_of_its_items(items: list[int], data: st.DataObject):
    assert same_answer(", ".join(map(str, items)), items)
    wrong = list(items)
    wrong[data.draw(st.integers(0, len(items) - 1))] += 7
    assert not same_answer(str(wrong), items, tolerance=0)
    assert not same_answer(str(items[:-1]), items)


def test_scoring_loads_nothing_but_the_standard_library():
    program = (
        "import sys; before = set(sys.modules); from agentlightning.scoring import score_math; score_math('1/2', '0.5');"
        "new = {name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names);"
        "print(sorted(new))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "['agentlightning']"


def test_a_value_next_to_the_largest_is_compared_without_an_error():
    assert same_answer("1.7*10^308", 1.7e308) and not same_answer("1.7*10^308", "1.7*10^308*x")
    assert not same_answer("10^309", 1e308) and math.isinf(float("1e309"))
