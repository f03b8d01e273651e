"""Declarations as DataFrames.

Building reads no records, and ``check`` builds every flow without starting a query.
"""
