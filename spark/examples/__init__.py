"""Example jobs over real data (the npm package vega-datasets 3.2.1). docs/etl.rst explains them."""
