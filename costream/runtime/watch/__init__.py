"""``costream watch``: many unreliable live feeds through one network, without end."""
