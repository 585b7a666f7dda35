# The runs behind the CSVs of this folder, in a clone's root.
pfedlora compare quick/cifar100-sharing --only sharing=mean --engine local --jobs 2      # -o data-path=DIR where the data already is; three core-hours beside other work
python -m benchmarks.training --classes 100 --epochs 5 --samples 480 --repeats 3 --models cnn1,cnn2,cnn3,cnn4,cnn5 --csv training.csv      # the last column
pfedlora run -o dataset=cifar100 -o clients=100 -o participation=0.1 -o partition.classes-per-client=10 -o rounds=30 -o local-epochs=5 -o mu=0.9     # and so on, by row
pfedlora run -o method=benchmarks.variants:Variant -o method-options="rows=classes features=normalised" -o sharing=none …     # from the repository's root; the rest as above
python -m benchmarks.results.methods_cifar100 'Standalone=…/standalone/seed-0' 'mu=0.9=RUN' …     # visits.csv, rounds.csv; a run a row, by its name there
python -m benchmarks.first_visit docs/results/methods/cifar100/first_visit.csv
