"""Pictures of memory over time: a page for the browser, a PNG.

Stage: render, in the reader's process (command line, notebook). In comes a :class:`~.curves.Chart`, made from
the rows of a named query; out goes a file, whole or absent. It asks the database nothing.
"""
