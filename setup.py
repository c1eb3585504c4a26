"""Builds the optional compiled loops; all other metadata is in setup.cfg.

`optional`: where no C compiler (or no Cython) is found, the installation goes on without them and
`pybroker.records._pure` does the work.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "pybroker.records._speedups",
            ["pybroker/records/_speedups.pyx"],
            depends=[
                "pybroker/records/_arrow_column.pxi",
                "pybroker/records/_open_batches.pxi",
                "pybroker/records/_columns.pxi",
                "pybroker/records/_consumed.pxi",
                "pybroker/records/_key_blocks.pxi",
                "pybroker/records/_key_table.pxi",
                "pybroker/records/_record_buffer.pxi",
            ],
            optional=True,
        )
    ]
)
