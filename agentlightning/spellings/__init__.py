"""Spellings: pure tables of names that are written for something here, or for something that is not here."""
