"""What leaves rankmem: one module a kind of file, each fed by ``Queries``.

Stage: export, in the reader's process. :mod:`kinds` lists them, :mod:`exporting` runs one, :mod:`log` is what
they read; :mod:`database` is the aggregator's own copy of its file. Importing this package loads nothing
heavy.
"""
