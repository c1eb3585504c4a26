"""Example jobs over real data (the npm package vega-datasets 3.2.1). `load` produces the data to
topics; docs/etl.rst explains the jobs.
"""
