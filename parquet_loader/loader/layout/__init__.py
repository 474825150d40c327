"""Judges the layout of a source by its footers: what costs time or spoils the shuffle.

columns    figures of each stored column, and the route of each delivered column
facts      everything known about a source before an epoch, as one value
rules      turn facts into findings, each with its cost and the command that fixes it
"""
