"""What a run may have beside its method, a folder each. The files beside the folders list them; a
feature imports no other one."""
