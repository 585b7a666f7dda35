# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare benchmarks/gain.yaml --only sharing=mean --engine local --drop-models --jobs 2        # the search; -o data-path=DIR where the data already is
pfedlora compare benchmarks/gain.yaml --only "method-options=rows=classes down=fixed,rows=classes down=fixed mu=0.3,rows=classes down=fixed server-lr=0.3,rows=classes down=fixed adapter.hidden-dim=500,rows=classes down=fixed features=normalised" --engine local --drop-models --jobs 2
pfedlora compare benchmarks/gain-confirm.yaml --engine local --drop-models --jobs 2
pfedlora compare benchmarks/gain-standalone.yaml --engine local --drop-models --jobs 2
python -m benchmarks.results.gain tried runs/benchmarks-gain                                                 # tried.csv
python -m benchmarks.results.gain confirmed runs/benchmarks-gain-confirm runs/benchmarks-gain-standalone     # confirmed.csv
