"""The command line: arguments, one call, render. Wires the agent and the aggregator; holds no logic, no SQL."""
