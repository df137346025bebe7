"""Insights: what to conclude from a recording, as pure functions on Arrow tables and numpy arrays.

Stage: query, in the reader's process. In: the answers of named queries. Out: an :class:`answer.Answer`. Reads
no database itself, so that a file, an aggregator and a lake give the same.
"""
