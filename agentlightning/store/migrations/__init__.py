"""Alembic migrations of the record, shipped inside the package. store/migrate.py runs them; no ini file is needed.

A change of store/schema.py adds one file to versions/, with the next number, and sets ``schema.REVISION`` to it.
"""
