"""What an independent survey of memory systems asks of one: a function for each of its ids, dots as two underscores.

A store that returns nothing passes every test of absence, so each has its positive control in the same fixture.
"""
