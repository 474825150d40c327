"""What footers say of a source's layout, and what about it costs time or spoils the shuffle.

columns    figures of each stored column, and how each delivered column travels
facts      all that is known of a source before an epoch, as one value
rules      facts to findings, each with its cost and the command that mends it
"""
