"""Reading: text to index terms, the two arms, their fusion and what may pass the floor."""
