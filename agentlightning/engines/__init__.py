"""Engines: tokens in; tokens, their logprobs and the weights' version out."""
