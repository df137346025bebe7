"""Exports: one module for each kind of file, each reading from ``Queries``.

Stage: export, in the reader's process. :mod:`kinds` lists them, :mod:`exporting` runs one, :mod:`log` reads
what they write. Importing this package loads nothing heavy.
"""
