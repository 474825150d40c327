"""`TokenLoader`: packs documents of token ids into sequences of one length."""
