"""Jobs over real data (the npm package vega-datasets 3.2.1), to look at and to run; `load` produces
the data to topics, docs/etl.rst goes through them.
"""
