"""Models of text: words as tokens, labels of lines."""
