"""Grammars that keep a sample to its reply's form: tool calls, their arguments, and structured output."""
