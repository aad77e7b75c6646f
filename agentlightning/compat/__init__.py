"""Surfaces that programs are written for and that are called otherwise here: each is thin, over our own rooms."""
