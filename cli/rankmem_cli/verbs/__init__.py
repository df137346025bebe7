"""The verbs of the command line, one file each: arguments, one call, render. No SQL, no logic.

What is heavy (duckdb, pyarrow, grpc, rich) is imported inside the functions, so that ``rankmem --help``
is there at once.
"""
