"""Experiments: which runs make up a comparison, and running them.

recipe, points      an experiment as data, in TOML, and the points of its grids
studies, plan       the runs that a recipe asks for
tasks, execute      what a run does, from its settings to its records
executors           processes of this machine; `ray_executor` and `submitit_executor` are those of clusters
store               where runs are kept: a folder, or storage that fsspec reaches
sweep, learn        carrying out a plan; with optuna, one that is found on the way
experiment_table    the folder of an experiment with the records of its finished runs
bench, estimate     seconds of training steps, and from these the duration of a plan
demo                the job of `trm demo`
"""
