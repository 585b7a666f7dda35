# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare benchmarks/normalised.yaml --engine local --drop-models --methods benchmarks.variants:NormalisedStandalone      # -o data-path=DIR where the data already is
pfedlora compare benchmarks/gain-standalone.yaml --engine local --drop-models --seeds 0,1 -o lr=0.03 --output RATES
python -m benchmarks.results.normalised runs.csv runs/benchmarks-normalised
python -m benchmarks.results.normalised rates.csv RATES
pfedlora compare quick/leaderboard --methods pfedlora_plus --only sharing=mean,none --engine local --drop-models --output PLUS
pfedlora compare benchmarks/normalised-long.yaml --engine local --drop-models --output NORMALISED
python -m benchmarks.results.normalised plus.csv PLUS NORMALISED
