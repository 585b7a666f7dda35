# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare quick/cifar10-methods --engine local --jobs 2      # -o data-path=DIR where the data already is; three core-hours beside other work
python -m benchmarks.training --models cnn1,cnn2,cnn3,cnn4,cnn5 --repeats 3 --samples 1280 --csv training.csv      # the last column, quiet
pfedlora run -o method=fml -o dataset=cifar10 -o clients=10 -o batch-size=64 -o rounds=12 -o sharing=none -o output=runs/fml-none
pfedlora run -o method=fml -o dataset=cifar10 -o clients=10 -o batch-size=64 -o rounds=12 -o sharing=start -o output=runs/fml-start
pfedlora run -o method=fml -o dataset=cifar10 -o clients=10 -o batch-size=64 -o rounds=12 -o fml.alpha=0.9 -o output=runs/fml-alpha
python -m benchmarks.results.methods_cifar10 'fml=…/fml/seed-0' 'fml sharing=none=runs/fml-none' 'fml sharing=start=runs/fml-start' 'fml fml.alpha=0.9=runs/fml-alpha' 'standalone=…/standalone/seed-0'      # why-fml.csv; … is runs/quick-cifar10-methods
