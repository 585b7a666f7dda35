# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare benchmarks/sensitivity.yaml --only mu=0.5,0.7,0.9 --engine local --drop-models --jobs 2     # -o data-path=DIR where the data already is; an hour
pfedlora compare benchmarks/sensitivity.yaml --only sharing=mean --engine local --drop-models --jobs 2       # h; half an hour
pfedlora compare benchmarks/gain-standalone.yaml --engine local --drop-models --jobs 2
pfedlora compare quick/leaderboard --methods pfedlora -o mu=0.9 --only sharing=mean,none --output runs/leaderboard-mu0.9 --engine local --drop-models --jobs 2     # 2.6 core-hours
python -m benchmarks.results.sensitivity runs/benchmarks-sensitivity runs/benchmarks-gain-standalone runs/leaderboard-mu0.9     # points.csv, operations.csv; the rest by `make results`
