"""`EpisodeLoader`: delivers consecutive rows of episodes."""
