"""Histories: what clients and brokers did and observed during a test run with faults.

`ops` defines the log of operations, `loader` reads the logs of a run into a `model.History`, and
`checker.check` returns every violation of a rule. No module here may import the broker: the checks
share no code with the system under test.
"""
