# The runs behind the CSVs of this folder, in a clone's root.
pfedlora weights timm:tf_efficientnet_lite0 --output lite0.safetensors        # and lite1, lite2
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 --only lr=0.003,0.01,0.03 --only fedgh.server-lr=0.01,0.1 --output TEN      # -o data-path=DIR where the data already is
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=30 --only lr=0.003,0.01,0.03 --methods lg_fedavg,fedrod,fd,fedgh --only fedgh.server-lr=0.01,0.1 --output THIRTY
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=30 --only lr=0.0003,0.001,0.003 --methods fedgh --only fedgh.server-lr=0.01,0.1 --output FEDGH30      # the rates of THIRTY stay
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods standalone,fedssa,pfedlora_plus --only lr=0.0001,0.0003,0.001,0.003,0.01 --only adapter.hidden-dim=120 --output LOW
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=30 --only lr=0.0003,0.001,0.003 --methods fedrod --only sharing=none --only representation=pretrained-logits --output FEDROD
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 --only lr=0.003,0.01,0.03 -o dataset=cifar10 -o partition.classes-per-client=5 --methods standalone,lg_fedavg,fedrod,fd,fedgh,fedssa --only fedgh.server-lr=0.01,0.1 --output CIFAR10
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 -o dataset=cifar10 -o partition.classes-per-client=5 --methods pfedlora_plus --only lr=0.0001,0.0003,0.001,0.003 --output LOW10
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 --only lr=0.0003,0.001,0.003 -o dataset=cifar10 -o partition.classes-per-client=5 --methods fedrod --only sharing=mean --only representation=pretrained-logits --output FEDROD10
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods standalone,fedssa --only lr=0.0003,0.001,0.003,0.01 --output FIFTY
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods pfedlora_plus --only lr=0.0001,0.0003,0.001,0.003 --only adapter.hidden-dim=120 --output PLUS50
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods lg_fedavg,fedrod --only lr=0.001,0.003,0.01 --output PLAIN50
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedrod --only lr=0.0001,0.0003 --only representation=pretrained-logits --output FEDROD50
python -m benchmarks.results.pretrained runs.csv TEN THIRTY LOW FEDROD FIFTY PLUS50 PLAIN50 FEDROD50 FDGH50  # a later folder's runs take the place of an earlier one's
python -m benchmarks.results.pretrained cifar10.csv CIFAR10 LOW10 FEDROD10
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fd,fedgh --only lr=0.001,0.003,0.01 --only fedgh.server-lr=0.01,0.1 --output FDGH50
# candidates of lower rates that were not chosen
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fd --only lr=0.0003 --only sharing=mean --seeds 0 --output FD50LOW
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedgh --only lr=0.0003 --only fedgh.server-lr=0.01,0.1 --only representation=features --seeds 0 --output FEDGH50LOW
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods pfedlora_plus --only lr=0.00003 --only adapter.hidden-dim=120 --only representation=features --only sharing=mean --seeds 0 --output PLUS50LOW
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods lg_fedavg,fedrod --only lr=0.0003 --only representation=pretrained-logits --seeds 0 --output PLAIN50LOW
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods lg_fedavg,fedrod --only lr=0.0003 --only representation=features --only sharing=none --seeds 0 --output PLAIN50ALONE
python -m benchmarks.local_heads benchmarks/pretrained.yaml --samples 10,30,50 > docs/results/pretrained/local-heads.csv
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods standalone --only sharing=mean --only lr=0.003,0.01,0.03,0.1,0.3 --output N10
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods standalone --only sharing=mean --only lr=0.3,1.0 --seeds 0 --output N10H
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedssa,pfedlora_plus --only sharing=mean --only lr=0.001,0.003,0.01,0.03,0.1 --output N10S
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods pfedlora_plus --only sharing=none --only lr=0.003,0.01,0.03,0.1 --output N10A
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedgh --only sharing=mean --only lr=0.01,0.03,0.1 --only fedgh.server-lr=0.001,0.003,0.01 --output N10G
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods fedgh --only sharing=mean --only lr=0.003,0.01,0.03 --only fedgh.server-lr=0.001,0.003,0.01 --output N30G
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedgh --only sharing=mean --only representation=features --only lr=0.001,0.003,0.01 --only fedgh.server-lr=0.001,0.003,0.01 --output N50G
# other candidates of FedGH there, with --seeds 0, none of them chosen: lr=0.3 with ten images, on features lr=0.003 and server-lr=0.1, too; lr=0.1 with thirty
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedgh --only sharing=mean --only representation=pretrained-logits --only lr=0.001,0.003,0.01 --only fedgh.server-lr=0.001,0.003,0.01 --output N50H
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedgh --only sharing=none --only lr=0.01,0.03,0.1,0.3 --only fedgh.server-lr=0.003,0.01,0.1 --output N10C
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods fedgh --only sharing=none --only lr=0.003,0.01,0.03 --only fedgh.server-lr=0.003,0.1 --output N30C
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedgh --only sharing=none --only lr=0.001,0.003,0.01 --only fedgh.server-lr=0.003 --output N50C
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fd --only sharing=mean --only lr=0.003,0.01,0.03,0.1,0.3 --output N10D
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods fd --only sharing=mean --only lr=0.003,0.01,0.03,0.1 --output N30D
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fd --only sharing=mean --only lr=0.0003,0.001,0.003,0.01,0.03,0.1 --output N50D
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods standalone --only sharing=mean --only lr=0.001,0.003,0.01,0.03,0.1 --output N30
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods fedssa,pfedlora_plus --only sharing=mean --only lr=0.0003,0.001,0.003,0.01,0.03 --output N30S
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods pfedlora_plus --only sharing=none --only lr=0.0003,0.001,0.003,0.01,0.03 --output N30A
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedssa --only sharing=none --only lr=0.003,0.01,0.03,0.1,0.3 --output N10F
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods fedssa --only sharing=none --only lr=0.001,0.003,0.01,0.03,0.1 --output N30F
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods standalone --only sharing=mean --only lr=0.0003,0.001,0.003,0.01,0.03 --output N50
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedssa,pfedlora_plus --only sharing=mean --only lr=0.0003,0.001,0.003,0.01 --output N50S
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods pfedlora_plus --only sharing=none --only lr=0.0003,0.001,0.003,0.01 --output N50A
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedssa --only sharing=none --only lr=0.001,0.003,0.01,0.03 --output N50F
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods lg_fedavg,fedrod --only sharing=mean --only lr=0.003,0.01,0.03,0.1 --output N10P
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods lg_fedavg,fedrod --only sharing=mean --only lr=0.001,0.003,0.01,0.03 --output N30P
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods lg_fedavg,fedrod --only sharing=mean --only lr=0.001,0.003,0.01,0.03 --output N50P
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods lg_fedavg,fedrod --only sharing=none --only lr=0.01,0.03,0.1,0.3 --output N10Q
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods lg_fedavg,fedrod --only sharing=none --only lr=0.003,0.01,0.03,0.1,0.3 --output N30Q
pfedlora compare benchmarks/pretrained-normalised.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods lg_fedavg,fedrod --only sharing=none --only lr=0.0003,0.001,0.003,0.01,0.03,0.1 --output N50Q
python -m benchmarks.results.pretrained normalised.csv N10 N10S N10A N10F N10P N10Q N10G N10C N10D N30 N30S N30A N30F N30P N30Q N30G N30C N30D N50 N50S N50A N50F N50P N50Q N50G N50H N50C N50D
python -m benchmarks.results.pretrained_tuning THIRTY FEDGH30 LOW FEDROD CIFAR10 LOW10 FEDROD10 FIFTY PLUS50 PLAIN50 FEDROD50 FDGH50 FD50LOW FEDGH50LOW PLUS50LOW PLAIN50LOW PLAIN50ALONE N10 N10H N10S N10A N10F N10P N10Q N10G N10C N10D N30 N30S N30A N30F N30P N30Q N30G N30C N30D N50 N50S N50A N50F N50P N50Q N50G N50H N50C N50D
pfedlora compare benchmarks/pretrained-rates.yaml --engine local --drop-models --only lr=0.001,0.003,0.01,0.03,0.1 --only adapter.hidden-dim=120,240 --output MORE
python -m benchmarks.results.pretrained rates.csv MORE
pfedlora compare benchmarks/pretrained-rates.yaml --engine local --drop-models --only lr=0.0001,0.0003,0.001,0.003 --only adapter.hidden-dim=240 --only sharing=mean --methods pfedlora_plus --seeds 0 --output LOWTEN
python -m benchmarks.results.pretrained_tuning LOWTEN
pfedlora compare benchmarks/pretrained-rates.yaml --engine local --drop-models --only lr=0.001,0.003,0.01,0.03,0.1 --only adapter.hidden-dim=120,240 --methods standalone -o rounds=160 --output LONGER
python -m benchmarks.results.pretrained longer.csv LONGER

pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedgh --only sharing=mean --only lr=0.01,0.03,0.1 --only fedgh.server-lr=0.001,0.003,0.01 --output GH10      # both chosen
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedgh --only sharing=mean --only lr=0.003,0.01 --only fedgh.server-lr=0.0003,0.001,0.003 --output GH10L      # chooses the same
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=10 --methods fedgh --only sharing=none --only lr=0.01,0.03,0.1 --only fedgh.server-lr=0.003,0.1,0.3 --output GH10C      # chosen on features
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=30 --methods fedgh --only sharing=mean --only lr=0.003,0.01 --only fedgh.server-lr=0.001,0.003 --output GH30      # chosen on logits
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedgh --only sharing=mean --only representation=pretrained-logits --only lr=0.001,0.003 --only fedgh.server-lr=0.001,0.003 --output GH50L      # chosen
pfedlora compare benchmarks/pretrained.yaml --engine local --drop-models --only partition.samples-per-client=50 --methods fedgh --only sharing=mean --only representation=features --only lr=0.001,0.003 --only fedgh.server-lr=0.003 --seeds 0 --output GH50F      # not chosen
python -m benchmarks.results.pretrained runs.csv GH10 GH50L GH10C GH30      # of GH10C the rows on features alone, of GH30 those on logits
python -m benchmarks.results.pretrained_tuning GH10 GH10L GH10C GH30 GH50L GH50F

pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.0003,0.001,0.003,0.01 --only clients=3 --output THREE      # 0.03 was tried earlier, and never chosen
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.0001,0.0003,0.001,0.003,0.01 --only clients=3 --methods fedrod --only sharing=mean --output THREE      # 0.0001 is not chosen
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.003,0.01,0.03 --only clients=10 --methods standalone,fedssa,pfedlora_plus
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.003,0.01,0.03,0.1 --only clients=10 --methods lg_fedavg,fedrod --output TENOTHERS
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.1 --only clients=10 --methods standalone,fedssa,pfedlora_plus --seeds 0 --output TENHIGH
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.003,0.01,0.03 --only partition.kind=dirichlet --methods standalone,lg_fedavg,fedssa,fedrod
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.0001,0.0003,0.001,0.003 --only partition.kind=dirichlet --methods pfedlora_plus --output LOWDIR
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.003,0.01,0.03 --only clients=100 --only partition.kind=iid
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.003,0.01,0.03 --only clients=100 --only partition.kind=iid --only sharing=mean --methods pfedlora_plus -o adapter.rows=samples --output SAMPLES
python -m benchmarks.results.pretrained rows-samples.csv SAMPLES
pfedlora compare benchmarks/pretrained-partitions.yaml --engine local --drop-models --only lr=0.0003,0.001,0.003 --only partition.kind=dirichlet --methods fedrod --only sharing=mean --only representation=pretrained-logits --output FEDRODDIR
python -m benchmarks.results.pretrained federations.csv runs/benchmarks-pretrained-partitions LOWDIR FEDRODDIR TENOTHERS THREE
python -m benchmarks.results.pretrained_tuning LOWDIR FEDRODDIR TENOTHERS TENHIGH THREE

pfedlora align -o dataset=cifar10 -o models=… -o train=head -o representation=pretrained-logits -o model-input=96 --samples 2000 --basis cifar10-logits.safetensors
pfedlora compare benchmarks/pretrained-logits.yaml --engine local --drop-models --output PILOT/logits      # also -features and -neck
python -m benchmarks.results.pretrained_pilot PILOT                            # pilot.csv and tried.csv
make results                                                                  # the tables
