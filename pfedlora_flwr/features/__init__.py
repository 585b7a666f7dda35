"""What a run may have beside its method, a folder each. In `rules.py` and `plans.py` are the lists
of all; a feature imports no other one."""
