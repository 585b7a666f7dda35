# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare quick/leaderboard --methods standalone,lg_fedavg,fd,fedproto,fedmrl,pfedmoe,pfedlora --only sharing=mean --engine local --drop-models --jobs 2      # -o data-path=DIR where the data already is; seven core-hours
cp runs/quick-leaderboard/report/{accuracies,sampled,costs}.csv docs/results/leaderboard/
cp runs/quick-leaderboard/report/curves_sharing-mean.png docs/results/leaderboard/curves.png
pfedlora compare quick/leaderboard --methods pfedlora,fedmrl,fedproto,pfedmoe,lg_fedavg --only sharing=none --engine local --drop-models --jobs 2     # without sharing: 6.3 core-hours
cp runs/quick-leaderboard/report/runs.csv docs/results/leaderboard/
python -m benchmarks.results.leaderboard runs/quick-leaderboard     # course.csv, operations.csv; the rest by `make results`
