"""Options of runs: flags of the command line, configuration files, budgets."""
