"""Whether an answer that a model wrote is the right one: what graders of math problems write by hand.

The text is a model's, so nothing of it is ever run, and what is read is bounded: every function here ends at once,
whatever it is given, and needs no time limit. It stands alone, and loads nothing but the standard library.
"""

from agentlightning.scoring.answers import final_answer, same_answer, score_math

__all__ = ["final_answer", "same_answer", "score_math"]
