"""The public loader: epochs, state, statistics, mixtures, conversions."""
