"""``watch``: many feeds that fail, one network, for as long as one likes."""
