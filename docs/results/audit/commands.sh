# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare quick/audit && pfedlora audit runs/quick-audit                       # -o data-path=DIR where the data already is
pfedlora compare quick/audit-secure && pfedlora audit runs/quick-audit-secure
pfedlora compare quick/audit-homogeneous && pfedlora audit runs/quick-audit-homogeneous
pfedlora compare quick/audit-harder && pfedlora audit runs/quick-audit-harder
python -m benchmarks.results.audit runs/quick-audit runs/quick-audit-secure runs/quick-audit-homogeneous runs/quick-audit-harder
make results                                                                          # the table
