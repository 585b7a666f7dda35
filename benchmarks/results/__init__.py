"""The pages of docs/results, made from the run tables (CSV) that lie beside them.

`python -m benchmarks.results` (`make results`) writes every table and picture anew and fails, a
line a difference, where a page had another number. A page's module computes; `page.py` knows how
a page is written. `python -m benchmarks.results.MODULE RUNS …` gathers a page's CSVs from runs."""
