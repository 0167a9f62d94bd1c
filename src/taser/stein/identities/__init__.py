"""The theorems of the paper as tools: is a score, or a model, what it should be?"""
