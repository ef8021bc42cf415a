"""What every part may import: records, errors, clocks, names. Imports no part, and no torch."""
