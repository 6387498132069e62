"""A method, a data set, a backbone and an experiment for transferrisk, found through the package's entry points."""
