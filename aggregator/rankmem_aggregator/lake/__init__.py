"""A lake: the database's tables as Parquet in Delta tables, in a folder or an object store.

``layout`` declares it, ``catalog`` reads which files count, ``files`` reads and writes bytes, ``import_``
writes a database file into it, ``queries`` answers from it with the views of ``sql/``, ``check`` compares it
with what it should hold. ``docs/scale.md`` says when to use one.
"""
