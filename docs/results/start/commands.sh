# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare benchmarks/start.yaml --engine local --drop-models --output DIR
pfedlora compare benchmarks/start.yaml --engine local --drop-models --output DIR9 --methods pfedlora -o mu=0.9
python -m benchmarks.results.start runs.csv DIR DIR9
pfedlora compare quick/leaderboard --only sharing=mean --methods standalone,pfedlora --seeds 0 --engine local --drop-models --output LONG -o rounds=300
pfedlora compare quick/leaderboard --only sharing=none --methods pfedlora --seeds 0 --engine local --drop-models --output ALONE -o rounds=300
pfedlora compare quick/leaderboard --only sharing=mean --methods standalone,fd,fedproto,fedmrl,pfedlora --seeds 1 --engine local --drop-models --output SECOND -o rounds=120 -o precision=fp32
pfedlora compare quick/leaderboard --only sharing=none --methods pfedlora --seeds 1 --engine local --drop-models --output SECOND-ALONE -o rounds=120 -o precision=fp32
pfedlora compare quick/leaderboard --only sharing=mean --methods pfedlora --seeds 1 --engine local --drop-models --output SECOND-9 -o rounds=120 -o precision=fp32 -o mu=0.9
pfedlora compare quick/leaderboard --only sharing=mean --methods standalone,pfedlora --seeds 2 --engine local --drop-models --output THIRD -o rounds=120
pfedlora compare quick/leaderboard --only sharing=none --methods pfedlora --seeds 2 --engine local --drop-models --output THIRD-ALONE -o rounds=120
pfedlora compare quick/leaderboard --only sharing=mean --methods pfedlora --seeds 0 --engine local --drop-models --output LONG-9 -o rounds=300 -o mu=0.9
pfedlora compare quick/leaderboard --only sharing=mean --methods fedproto --seeds 0 --engine local --drop-models --output LONG-PROTO -o rounds=300
pfedlora compare quick/leaderboard --only sharing=none --methods fedproto --seeds 0 --engine local --drop-models --output PROTO-ALONE -o rounds=120
pfedlora compare quick/leaderboard --only sharing=mean --methods fedmrl --seeds 0 --engine local --drop-models --output LONG-MRL -o rounds=300
pfedlora compare quick/leaderboard --only sharing=none --methods fedmrl --seeds 1 --engine local --drop-models --output MRL-ALONE -o rounds=120 -o precision=fp32
python -m benchmarks.results.start rounds.csv LONG ALONE SECOND SECOND-ALONE SECOND-9 THIRD THIRD-ALONE LONG-9 LONG-PROTO PROTO-ALONE LONG-MRL MRL-ALONE
