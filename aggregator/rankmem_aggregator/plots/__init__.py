"""Pictures of memory over time: a page for the browser, a PNG.

Stage: render, in the reader's process (command line, notebook). In: a :class:`~.curves.Chart`, made from the
rows of a named query; out: a file, whole or absent. Reads no database.
"""
