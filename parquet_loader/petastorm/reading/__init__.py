"""How Petastorm data sets are read: what is not one of its own module names."""
