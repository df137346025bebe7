"""The command line: arguments, one call, render. Wires agent and aggregator; holds no logic, no SQL."""
