"""The command line: arguments, one call, render. Wires agent and aggregator; contains no logic and no SQL."""
