"""Every key as an argument, for type checkers and completion.

Written by `make docs` from the declarations in the code: change those."""
# ruff: noqa: E501
# fmt: off

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

class ReadingKeys(TypedDict, total=False):
    data_label_column: str | None
    """the label column; auto: `label`, for `hf:` the column of class labels (auto; auto, or text)"""
    data_input_column: str | None
    """the input column, only for `hf:`; auto: its only column of images or arrays, otherwise all numeric columns (auto; auto, or text)"""
    data_text_column: str | None
    """the column of texts, of `csv:`, `parquet:` and `hf:`; auto: none (auto; auto, or text)"""
    data_client_column: str | None
    """the column that names a sample's owner (partition.kind=natural); auto: none (auto; auto, or text)"""
    data_class_names: str | int | float | Sequence[str]
    """a table's classes in order; auto: its sorted labels (auto; auto, or names, separated by commas)"""
    data_features: str | int | float | Sequence[str]
    """a table's columns that are features, by name, in any order and among others; auto: all numeric ones but the label and the client (auto; auto, or names, separated by commas)"""
    data_drop: str | int | float | Sequence[str]
    """a table's columns that are no features; auto: none (auto; auto, or names, separated by commas)"""
    data_missing: Literal['refuse', 'mean', 'median']
    """a value that is missing of a feature. mean, median: that of the training rows takes its place, and with median features are centred there (refuse; refuse | mean | median)"""
    data_categories: Literal['drop', 'one-hot']
    """a table's columns of text that are no label. one-hot: each of a column's values becomes a feature, COLUMN=VALUE, by which data.features may name it; sites agree on all (drop; drop | one-hot)"""
    data_class_map: str
    """a CSV with the columns label and class: the class that each label of the data means; of a node, class-map in its node-config; empty: as they are spelt (; text)"""
    data_sep: Literal['comma', 'semicolon', 'tab', 'bar']
    """column separator of a CSV (comma; comma | semicolon | tab | bar)"""
    data_decimal: Literal['point', 'comma']
    """decimal separator in a CSV (point; point | comma)"""
    data_subfolders: bool
    """include images in sub-folders of a class's folder (`folder:`) (False; true or false)"""


class Keys(ReadingKeys, total=False):
    method: str | Callable[..., Any]
    """the method: a name from the package, or `package.module:Class` (pfedlora; text)"""
    method_options: str | Mapping[str, Any]
    """options of your own method (`package.module:Class`): `key=value key=value` (; text)"""
    sharing: Literal['mean', 'none', 'start']
    """mean: normal. none (control): each client aggregates only its own uploads. start (control): clients always receive the initial state (mean; mean | none | start)"""
    aggregation: Literal['mean', 'median', 'trimmed-mean', 'krum']
    """what merges the uploads. mean: weighted by n_k. median, trimmed-mean (by element, or by class row), krum (one client's upload): unweighted, and bounded in what aggregation.liars clients can do (mean; mean | median | trimmed-mean | krum)"""
    aggregation_liars: int
    """F, how many of a round's clients may lie. A round needs 2 F + 1 clients, with krum 2 F + 3; a class row so many holders (1; an integer ≥ 1)"""
    max_weight: float
    """a claimed number of samples (n_k, or of a class) counts at most this many times the round's median one, and at most as the client's first one in the run; 0: no bound (0.0; a number ≥ 0)"""
    dataset: str | Callable[..., Any] | tuple[Any, ...] | Mapping[str, Any]
    """inputs and labels (digits; digits | cifar10 | cifar100 | synthetic:… | folder:… | npz:… | csv:… | parquet:… | hf:… | package.module:function)"""
    classes: int | Literal['auto'] | None
    """number of classes; auto: the dataset's (set it if only the nodes have the data) (auto; auto, or an integer ≥ 2)"""
    image_size: int | Literal['auto'] | None
    """height and width to which images are resized; auto: 32 for digits, CIFAR and synthetic images, otherwise the size that all images have (auto; auto, or an integer ≥ 8 and ≤ 4096)"""
    input_shape: str | None
    """the shape of an input: 3x64x48 (channels, height, width; images are resized), 6x128 (channels, time), 13 (features); auto: the dataset's (set it if only the nodes have the data) (auto; auto, or text)"""
    max_tokens: int
    """tokens of a text that a model takes (64; an integer ≥ 2 and ≤ 8192)"""
    split_kind: Literal['random', 'groups', 'time', 'given']
    """what divides a client's samples. random: by chance, stratified. groups: samples with one value of split.column stay together. time: the last ones by split.column are for tests. given: by split.column (train, validation, test), or the data's own parts (random; random | groups | time | given)"""
    split_column: str | None
    """the column of groups, times or parts, which is no feature; of an npz file the array, of a function the entry, of that name; auto: none (auto; auto, or text)"""
    split_shares: str | int | float | Sequence[str]
    """the shares of training, validation and test (8,1,1; three integers from 1 to 99, separated by commas)"""
    split_folds: int | Literal['auto'] | None
    """cross-validation: each client's samples, or groups, in so many parts. split.fold is for tests, a ninth of the others for validation. A comparison runs all folds of a seed; auto: split.shares (auto; auto, or an integer ≥ 2 and ≤ 100)"""
    split_fold: int
    """the fold that is for tests, from 0; a comparison sets it (0; an integer ≥ 0)"""
    clients: int
    """N, the number of clients; auto, by `flwr run` in a simulation: the number of nodes (10; an integer ≥ 1 and ≤ 1e+06)"""
    clients_joined: str | int | float | Sequence[str]
    """clients that joined after round 1, as R:N: only the first N clients take part up to round R. Set by --resume with more `clients` (; R:N, or several of them, separated by commas)"""
    clients_left: str | int | float | Sequence[str]
    """clients that left, as R:K: client K is in no round after round R. K alone: in none, or with --resume in none after the run's last one, and K may be its site's name (; R:K or K, or several of them, separated by commas)"""
    clients_held_out: int
    """H, the last clients, which have data and are never sampled; adapted and evaluated at the end, as clients that come later (0; an integer ≥ 0)"""
    held_out_rounds: int
    """visits of a held-out client when it is adapted (10; an integer ≥ 1)"""
    held_out_samples: str | int | float | Sequence[str]
    """training samples with which a held-out client is adapted: all, or a number; several, each for an adaptation of its own (all; all, or integers ≥ 2, separated by commas)"""
    held_out_every: int
    """adapt the held-out clients after every n-th round, too; 0: only at the end (0; an integer ≥ 0)"""
    participation: float
    """C, the share of clients sampled in each round (1.0; a number > 0 and ≤ 1)"""
    seed: int
    """the seed of all random draws (0; an integer ≥ 0)"""
    partition_kind: Literal['pathological', 'dirichlet', 'iid', 'natural']
    """how samples are assigned to clients (pathological; pathological | dirichlet | iid | natural)"""
    partition_classes_per_client: int | Literal['auto']
    """classes per client (pathological); their product with the number of clients must be a multiple of the number of classes; auto, in a run: 2, or the smallest number that divides evenly (2; an integer ≥ 1)"""
    partition_alpha: float
    """concentration of the Dirichlet distribution (0.3; a number > 0)"""
    partition_min_samples: int
    """owners with fewer samples are left out (natural) (10; an integer ≥ 10)"""
    partition_samples_per_client: int | Literal['auto'] | None
    """maximum of training samples per client, taken from its classes in turn; validation and test parts stay; auto: all (auto; auto, or an integer ≥ 2)"""
    partition_share: float
    """the share of its training samples that a client has, taken in the same way; a report says what a gain is worth in rows if an axis has several (1.0; a number > 0 and ≤ 1)"""
    partition_last: int | Literal['auto'] | None
    """the client that takes the last number, by the number that it has otherwise: with clients-held-out=1 an axis over it leaves each site out in turn; auto: as they come (auto; auto, or an integer ≥ 0)"""
    models: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]
    """client models: cnn1 … cnn5, conv1d1 …, mlp1 …, timm:NAME, torchvision:NAME, hf:FOLDER (texts), package.module:Class; client k gets number k mod their count; auto: by the setting (auto; auto, or models, separated by commas)"""
    setting: Literal['heterogeneous', 'homogeneous']
    """five models in turn (CNN-1 to CNN-5; Conv1d for series, MLP for vectors), or the first one for all clients (heterogeneous; heterogeneous | homogeneous)"""
    train: str | int | float | Sequence[str]
    """the part of its model that a client trains: all, head (frozen encoder), or lora (frozen encoder with LoRA inside, and the head); several values are assigned in turn (all; all | head | lora, or several of them, separated by commas)"""
    lora_rank: str | int | float | Sequence[str]
    """LoRA: rank r; several values are assigned in turn (8; integers ≥ 1, separated by commas)"""
    lora_alpha: float | Literal['auto'] | None
    """LoRA: the product is scaled by alpha / r; auto: 2·r, the same scale for any rank (auto; auto, or a number > 0)"""
    lora_targets: str | int | float | Sequence[str]
    """LoRA: suffixes of layer names, or all-linear; auto: qkv of a ViT, query,value of a BERT, conv_pw,conv_pwl of an EfficientNet, the last stage's 3×3 convolutions of a ResNet (auto; auto, or all-linear, or suffixes of layer names, separated by commas)"""
    lora_dropout: float
    """LoRA: dropout of its input in training (0.0; a number ≥ 0 and < 1)"""
    lora_init: str
    """LoRA: initialisation of A (B starts at 0): peft (Kaiming), orthogonal rows, or folder:PATH, A and B saved by peft (peft; peft | orthogonal | folder:…)"""
    lora_head: Literal['private', 'shared']
    """the head under methods that exchange LoRA: private to each client, or shared, sent and averaged as LoRA is (private; private | shared)"""
    representation: str
    """R, the input of the head: the encoder's features; pretrained-logits, the output of the classifier that came with the model's weights; or anchors:FILE, the features mapped onto those of one reference encoder (features; features | pretrained-logits | anchors:…)"""
    anchors_ridge: float
    """λ, the ridge of the map onto the reference, in mean squares of an anchor's features (0.3; a number > 0)"""
    representation_norm: Literal['none', 'layer']
    """layer: the R of a client's model without its mean and of unit variance, sample by sample; behind a neck, if there is one (none; none | layer)"""
    neck: Literal['auto', 'always']
    """a private layer before the head, to representation-width; auto: if a method needs one width and the models' widths differ (auto; auto | always)"""
    representation_width: int
    """width of R behind a neck (500; an integer ≥ 1 and ≤ 100000)"""
    model_input: int | Literal['auto'] | None
    """height and width to which a timm or torchvision model resizes images internally; auto: no resizing (auto; auto, or an integer ≥ 8 and ≤ 4096)"""
    normalise: Literal['auto', 'federation', 'model']
    """mean and standard deviation for a model's inputs: the federation's, or those of its weights; auto: model if it has weights and train is not all, otherwise federation (auto; auto | federation | model)"""
    initial_models: Literal['each', 'architecture']
    """initialisation: a model of its own for each client, or one model for all clients of an architecture (that of its first client) (each; each | architecture)"""
    evaluate_initial: bool
    """evaluate every client's initial model as round 0; otherwise clients count from their first visit on, and the best round is one over as many clients as the last (True; true or false)"""
    stop_patience: int | Literal['auto'] | None
    """end the run after so many rounds that evaluate and bring no better mean on the validation parts; it is completed then; auto: all rounds (auto; auto, or an integer ≥ 1)"""
    stop_score: Literal['accuracy', 'balanced-accuracy', 'macro-f1', 'log-loss']
    """the score of stop.patience (accuracy; accuracy | balanced-accuracy | macro-f1 | log-loss)"""
    start_from: str | PathLike[str]
    """begin from an earlier run: its directory, or a file of `pfedlora export RUN --shared`. Rounds go on behind the earlier run's last one (; text)"""
    evaluate_every: int
    """evaluate in every n-th round and in the last (1; an integer ≥ 1)"""
    local_epochs: int
    """E, epochs of local training per round (1; an integer ≥ 1)"""
    batch_size: int
    """B, samples per step (64; an integer ≥ 1)"""
    optimizer: Literal['sgd', 'adamw']
    """the optimiser, new in each visit; adamw: β = (0.9, 0.999), no momentum (sgd; sgd | adamw)"""
    lr: float
    """η_ω, the learning rate (0.01; a number > 0)"""
    lr_schedule: Literal['constant', 'cosine']
    """schedule of all clients' learning rates; cosine: from lr to almost 0 over all rounds (constant; constant | cosine)"""
    momentum: float
    """momentum of SGD (0.9; a number ≥ 0 and < 1)"""
    weight_decay: float
    """weight decay (decoupled with adamw) (0.0; a number ≥ 0)"""
    clip_norm: float
    """gradient clipping at this norm; 0: none (0.0; a number ≥ 0)"""
    loss_weights: Literal['none', 'balanced']
    """balanced: each class of a client's training samples has the same weight in its loss (none; none | balanced)"""
    loss_class_weights: str | int | float | Sequence[str]
    """the weight of each class in the loss, in the order of the classes; auto: by loss.weights (auto; auto, or numbers > 0, separated by commas)"""
    loss_function: str
    """a loss of your own, `package.module:function`, of logits [B, C] and labels [B], in the place of the mean cross entropy; empty: that (; text)"""
    augment: bool
    """random flip and crop of training images; the padding is an eighth of their size (4 of 32) (False; true or false)"""
    secagg_enabled: bool
    """secure aggregation: the server learns sums of updates, not single updates (False; true or false)"""
    secagg_clip: float
    """secagg: the largest change of an element in a visit; beyond it the client refuses; a power of two (1.0; a number > 0)"""
    secagg_max_samples: int
    """secagg: the largest number of training samples (n_k) of a client; beyond it the client refuses (10000; an integer ≥ 1 and ≤ 1e+06)"""
    dp_level: Literal['user', 'record']
    """differential privacy: user: of a client's updates, for whoever sees the server's states. record: of a training record, for whoever sees the uploads; only pfedlora_plus on frozen, public encoders (user; user | record)"""
    dp_clip: float | Literal['auto'] | None
    """dp: the L2 norm S to which a client's update is clipped, or with dp.level=record a record's gradient; auto: none (auto; auto, or a number > 0)"""
    dp_noise: float | Literal['auto'] | None
    """dp: z, the standard deviation of the noise is z·S, on a round's sum of updates, or with dp.level=record on each step's sum of gradients; 0: only clipping; auto: by dp.epsilon (auto; auto, or a number ≥ 0)"""
    dp_epsilon: float | Literal['auto'] | None
    """dp: ε for all planned participations of a client, from which z follows; the run, or with dp.level=record the client, ends before it would be exceeded; auto: by dp.noise (auto; auto, or a number ≥ 0.001)"""
    dp_delta: float
    """dp: δ, below 1/clients, or with dp.level=record below 1/n_k (1e-05; a number ≥ 1e-12 and < 1)"""
    dp_trained_down: bool
    """dp: allow adapter.down=trained, which multiplies the noise of two matrices (False; true or false)"""
    target_accuracy: float | Literal['auto'] | None
    """the accuracy up to which `to_target` counts costs; auto: the dataset's (0.9, for cifar100 0.5) (auto; auto, or a number > 0 and ≤ 1)"""
    device: Literal['auto', 'cpu', 'cuda']
    """the clients' device; auto: cuda if there is one (auto; auto | cpu | cuda)"""
    precision: Literal['fp32', 'bf16']
    """precision of products and activations; on a GPU fp32 uses TF32; bf16 is slow on a processor without instructions for it (AVX512_BF16, AMX) (fp32; fp32 | bf16)"""
    data_path: str | PathLike[str]
    """the folder of the dataset's files; empty: downloaded to the cache (; text)"""
    secagg_threshold: float
    """secagg: the share of the key shares that is needed to unmask (0.67; a number > 0.666667 and < 1)"""
    secagg_shares: int | Literal['auto'] | None
    """secagg: number of shares of each key, odd; auto: all up to 20 sampled clients, otherwise 21 (auto; auto, or an integer ≥ 5)"""
    anchors_send: int
    """a file of anchors of at most so many MB is sent to nodes whose node-config has anchors=sent; 0: to none (0; an integer ≥ 0 and ≤ 64)"""
    actors: int | Literal['auto'] | None
    """clients trained at once; auto: one per core, or one per GPU (auto; auto, or an integer ≥ 1 and ≤ 4096)"""
    lanes: int | Literal['auto'] | None
    """with engine=local: clients that the process trains side by side, for a GPU; auto: as many as its free memory holds, at most 10 (1; auto, or an integer ≥ 1 and ≤ 32)"""
    ray: str
    """a Ray cluster, HOST:PORT, for `run` and `compare`, started on one of its nodes; empty: $RAY_ADDRESS, otherwise this machine (; text)"""
    accept_changed_code: bool
    """with resume: continue although your own code has changed since the run's rounds (False; true or false)"""
    comparison_run: str
    """set by a comparison on real nodes: COMPARISON/RUN below the server's output-root, in the place of `output`; the run goes on with what is there, and its lines are handed back (; text)"""
    observers: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]
    """objects that receive each round: tensorboard (event files in `events` of the output), mlflow, wandb, prometheus (`metrics.prom` of the output), `package.module:Class` (; observers, separated by commas)"""
    audit_uploads: bool
    """keep every admitted upload, for `pfedlora audit` (False; true or false)"""
    verdict_score: str
    """the score that decides: what is tuned, the round of the best validation, the verdict. Of log-loss and ece less is better; sensitivity@CLASS is a class's recall (accuracy; accuracy | balanced-accuracy | macro-f1 | auroc | average-precision | log-loss | ece | sensitivity@…)"""
    verdict_margin: float
    """points: a difference that does not matter yet, in a report's verdict (2.0; a number ≥ 0 and ≤ 100)"""
    models_keep: Literal['last', 'best']
    """the models that predict, evaluate, export and cards take. best: those of the round of the best validation by verdict.score (last; last | best)"""
    scores_by_class: bool
    """clients tell their test samples by true and predicted class, which shows how many of each class they have (False; true or false)"""
    min_clients: int | Literal['auto'] | None
    """nodes needed before round 1; auto: all (auto; auto, or an integer ≥ 1)"""
    min_success: float
    """the share of sampled clients that must succeed for a round to count (1.0; a number > 0 and ≤ 1)"""
    clip_norm_factor: float
    """an update is refused if it is this many times as large as the median one of the round and of the last five; 0: never (100.0; a number ≥ 0)"""
    max_samples: int
    """the largest number of training samples (n_k) of an update; beyond it the update is refused (1000000; an integer ≥ 1)"""
    max_failed_rounds: int
    """the run stops after this many consecutive rounds below min-success (1; an integer ≥ 1)"""
    round_timeout: float
    """seconds after which missing clients of a round count as failed; with secagg training gets 55 % of it (3600.0; a number > 0)"""
    max_hours: float
    """stop (resumable) after the round in which this many hours have passed; 0: never (0.0; a number ≥ 0)"""
    node_timeout: float
    """seconds to wait for nodes to connect (300.0; a number > 0)"""
    adapter_kind: Literal['auto', 'reduced', 'decomposed']
    """reduced (after FC1) or decomposed (after FC2); auto: by the setting (auto; auto | reduced | decomposed)"""
    adapter_hidden_dim: int
    """h, the adapter's hidden width (its rank) (60; an integer ≥ 1 and ≤ 10000)"""
    adapter_init: Literal['random', 'lora']
    """random: PyTorch's default; lora: first matrix Gaussian, second zero (random; random | lora)"""
    adapter_down: Literal['trained', 'fixed', 'basis', 'auto'] | None
    """the adapter's first matrix. trained: as in the paper. fixed (ours): orthogonal, from the seed, the same for all clients, neither trained nor sent. basis (ours, only pfedlora_plus): public principal directions, neither trained nor sent. auto: trained; for pfedlora_plus fixed, or basis if R is common (auto; auto, or trained | fixed | basis)"""
    mu: float
    """μ, the weight of a client's own loss (Eq. 7; the paper uses 0.5 ≤ μ < 1) (0.5; a number ≥ 0 and ≤ 1)"""
    adapter_epochs: int | Literal['auto'] | None
    """epochs of adapter training per round; auto: local-epochs (auto; auto, or an integer ≥ 1)"""
    adapter_lr: float | Literal['auto'] | None
    """η_θ, the adapter's learning rate; auto: lr (auto; auto, or a number > 0)"""
    fml_alpha: float
    """α, the weight of the labels for the local model (0.5; a number ≥ 0 and ≤ 1)"""
    fml_beta: float
    """β, the weight of the labels for the small model (0.5; a number ≥ 0 and ≤ 1)"""
    fedkd_energy_start: float
    """share of σ² that compression keeps in the first round (0.95; a number ≥ 0 and ≤ 1)"""
    fedkd_energy_end: float
    """share of σ² that compression keeps in the last round (0.98; a number ≥ 0 and ≤ 1)"""
    fd_lambda: float
    """λ, the weight of the distillation loss (1.0; a number ≥ 0)"""
    fedproto_lambda: float
    """λ, the weight of the distance to the global prototype (1.0; a number ≥ 0)"""
    fedproto_weighting: Literal['count', 'equal']
    """clients' weights in a global prototype: their samples of the class, or equal (count; count | equal)"""
    fedgh_server_lr: float
    """learning rate of the server's SGD (0.01; a number > 0)"""
    fedgh_server_epochs: int
    """passes over a round's reports on the server (1; an integer ≥ 1)"""
    fedgh_server_batch: int
    """class means per step on the server; 0: all at once (10; an integer ≥ 0)"""
    fedssa_mu: float
    """μ₀, the initial weight of a client's own row relative to the global one (0.5; a number ≥ 0)"""
    fedssa_stable_rounds: int
    """T_stable, the rounds after which that weight is 0; with 1 it never counts, since the first round has no global rows (2; an integer ≥ 1)"""
    fedtgp_server_lr: float
    """learning rate of the server's SGD (0.01; a number > 0)"""
    fedtgp_server_epochs: int
    """passes over a round's reports on the server (100; an integer ≥ 1)"""
    fedtgp_server_batch: int
    """reports per step on the server; 0: all at once (0; an integer ≥ 0)"""
    fedtgp_lambda: float
    """λ, the weight of the distance to the global prototype (1.0; a number ≥ 0)"""
    fedtgp_margin_threshold: float
    """τ, the largest margin δ between prototypes on the server (100.0; a number ≥ 0)"""
    fedre_server_lr: float
    """learning rate of the server's SGD (0.01; a number > 0)"""
    fedre_server_epochs: int
    """passes over a round's reports on the server (1; an integer ≥ 1)"""
    fedre_server_batch: int
    """reports per step on the server; 0: all at once (32; an integer ≥ 0)"""
    fedorgp_server_lr: float
    """learning rate of the server's SGD (0.01; a number > 0)"""
    fedorgp_server_epochs: int
    """passes over a round's reports on the server (1; an integer ≥ 1)"""
    fedorgp_server_batch: int
    """reports per step on the server; 0: all at once (32; an integer ≥ 0)"""
    fedorgp_lambda: float
    """λ_c, the weight of the angle to the global prototype (1.0; a number ≥ 0)"""
    fedorgp_server_lambda: float
    """λ_s, the weight of alignment on the server (1.0; a number ≥ 0)"""
    fedorgp_gamma: float
    """γ, the weight of orthogonality on the server (1.0; a number ≥ 0)"""
    fedmrl_representation_dim: int
    """d1, the width of the small model's representation (100; an integer ≥ 1)"""
    fedmrl_small_weight: float
    """m_G, the weight of the small last layer's loss (1.0; a number ≥ 0)"""
    fedmrl_large_weight: float
    """m_F, the weight of the client's own last layer's loss (1.0; a number ≥ 0)"""
    pfedes_mu: float
    """μ, the weight of the transformed images in a client's loss (the paper: 0 < μ ≤ 0.5) (0.5; a number ≥ 0 and ≤ 1)"""
    pfedes_extractor_epochs: int | Literal['auto'] | None
    """epochs of extractor training per round; auto: local-epochs (auto; auto, or an integer ≥ 1)"""
    pfedmoe_gate_hidden_dim: int
    """m, the width of the gate's hidden layer (128; an integer ≥ 1)"""
    pfedlora_plus_mu: float
    """μ, the weight of a client's own loss, for pfedlora_plus with adapter.predict=own (0.3; a number ≥ 0 and ≤ 1)"""
    adapter_predict: Literal['own', 'sum', 'auto'] | None
    """own: the client's model alone predicts, as in the paper. sum: h_k(R) + A_θ(R), and the head is trained with the adapter added, which begins at zero. auto: sum if R is common (frozen encoders, no necks, and adapter.basis or weights with classifiers) (auto; auto, or own | sum)"""
    adapter_rows: Literal['samples', 'classes']
    """weights in the mean of each row of the adapter's second matrix. classes: samples of the row's class; losses, and the part added to the head, cover only the classes held. samples: n_k, as in pFedLoRA (classes; samples | classes)"""
    adapter_basis: str | PathLike[str] | None
    """for adapter.down=basis: a file of principal directions of public inputs (`pfedlora align --basis`); auto: those of the pretrained classifiers' weights (auto; auto, or text)"""
    adapter_alpha: float | Literal['auto'] | None
    """α: the first matrix's output is multiplied by α/h; auto: h (auto; auto, or a number > 0)"""
    fedrep_head_epochs: int
    """epochs of the head, before `local-epochs` of the extractor (10; an integer ≥ 1)"""
    fedprox_mu: float
    """μ, the weight of the proximal term (0.01; a number ≥ 0)"""
    ditto_lambda: float
    """λ, the weight of the own model's distance to the global one (1.0; a number ≥ 0)"""
    ditto_epochs: int | Literal['auto'] | None
    """epochs of the own model per visit (auto: `local-epochs`) (auto; auto, or an integer ≥ 1)"""
    flexlora_sigma: Literal['b', 'a', 'both']
    """the factor that gets the singular values: b, as in FlexLoRA; a, as in HLoRA; both: each gets their square roots (b; b | a | both)"""
    feddpa_alpha: float
    """a, the private adapter's share in the mixture that predicts (0.5; a number ≥ 0 and ≤ 1)"""
    fedbabu_finetune_epochs: int
    """epochs of fine-tuning before an evaluation (5; an integer ≥ 1)"""
    apfl_alpha: float
    """α, the initial weight of the own model (0.5; a number ≥ 0 and ≤ 1)"""
    apfl_adapt: bool
    """whether each client trains its α (True; true or false)"""
    fedala_layers: int
    """p, the number of last layers that are mixed; 0: all (1; an integer ≥ 0)"""
    fedala_rate: float
    """η, the learning rate of the weights W (1.0; a number > 0)"""
    fedala_share: float
    """s, the share of the samples that W learns from (0.8; a number > 0 and ≤ 1)"""
    fedala_threshold: float
    """in a client's second visit W is trained until the standard deviation of its last ten epochs' losses is below this (0.1; a number > 0)"""
    fedala_most_epochs: int
    """the largest number of epochs of W in that visit (50; an integer ≥ 1)"""
    sums_changing: int | Literal['auto'] | None
    """under masks: how many clients of a round must have changed, or be new, before they send that; at least secagg.threshold of them; auto: all of a round (auto; auto, or an integer ≥ 3)"""
    sums_dp_moment: float
    """with dp: w₂, the weight of the second moment in what is noised; 0: none, for fewer than about 5,000 records; that of the class sums is √(1 − w₂² − w₃²) (0.3; a number ≥ 0 and < 0.9)"""
    sums_dp_counts: float
    """with dp: w₃, the weight of the counts (0.3; a number > 0 and < 0.4)"""
    sums_honest: int | Literal['auto'] | None
    """with dp.level=record under masks: how many clients of a sum add their noise, whoever is lost or colludes; auto: more than half of a round (auto; auto, or an integer ≥ 1)"""
    sums_dim: int | Literal['auto'] | None
    """d, the first directions of a basis, in which representations are summed; auto: as they are, or all of sums.basis (auto; auto, or an integer ≥ 1)"""
    sums_basis: str | PathLike[str] | None
    """a file of principal directions of public inputs (`pfedlora align --basis`); auto: with sums.dim those of the pretrained classifiers' weights (auto; auto, or text)"""
    sums_priors: Literal['equal', 'own', 'all']
    """of classes. equal, all: among the classes held, all by their shares of all samples. own: among all, by the client's smoothed shares, weighted by leave-one-out (equal; equal | own | all)"""
    sums_correction: Literal['none', 'ridge']
    """ridge: each client adds a regression of what is left, on its own samples, which is never sent; its strength by leave-one-out (none; none | ridge)"""
    sums_shrinkage: str | None
    """s, how far the second moment is shrunk: a number from 0 to 1. fedlda: (1 − s) Σ + s·(tr Σ / d)·I; fedridge: λ = s / (1 − s). oas (fedlda): by its formula. validation: one of five, by the clients' validation samples. auto: 0.5; fedridge: 0.001 (auto; auto, or text)"""


class RunKeys(Keys, total=False):
    output: str | PathLike[str]
    """the run's directory; empty: runs/NAME, with `flwr run` ~/.pfedlora/runs (; text)"""
    sites: str | int | float | Sequence[str]
    """the registered names of the nodes that train, as many as `clients`; empty: all connected nodes; another node is sent nothing (; names, separated by commas)"""
    overwrite: bool
    """replace the run in `output` (False; true or false)"""
    rounds: int
    """T, the number of communication rounds (20; an integer ≥ 1)"""
    resume: bool
    """continue the run in `output` (False; true or false)"""


class CompareKeys(Keys, total=False):
    sites: str | int | float | Sequence[str]
    """the registered names of the nodes that train, as many as `clients`; empty: all connected nodes; another node is sent nothing (; names, separated by commas)"""
    overwrite: bool
    """replace the run in `output` (False; true or false)"""
    rounds: int
    """T, the number of communication rounds (20; an integer ≥ 1)"""
    resume: bool
    """continue the run in `output` (False; true or false)"""


class DecideKeys(Keys, total=False):
    overwrite: bool
    """replace the run in `output` (False; true or false)"""
    rounds: int
    """T, the number of communication rounds (20; an integer ≥ 1)"""
    resume: bool
    """continue the run in `output` (False; true or false)"""


class AdaptKeys(Keys, total=False):
    sites: str | int | float | Sequence[str]
    """the registered names of the nodes that train, as many as `clients`; empty: all connected nodes; another node is sent nothing (; names, separated by commas)"""
    rounds: int
    """T, the number of communication rounds (20; an integer ≥ 1)"""
    resume: bool
    """continue the run in `output` (False; true or false)"""


class ResumeKeys(Keys, total=False):
    sites: str | int | float | Sequence[str]
    """the registered names of the nodes that train, as many as `clients`; empty: all connected nodes; another node is sent nothing (; names, separated by commas)"""


class DataKeys(ReadingKeys, total=False):
    data_path: str | PathLike[str]
    """the folder of the dataset's files; empty: downloaded to the cache (; text)"""


def named(  # jedi reads no TypedDict, but follows what is handed on
    *,
    method: str | Callable[..., Any] = 'pfedlora',
    method_options: str | Mapping[str, Any] = '',
    sharing: Literal['mean', 'none', 'start'] = 'mean',
    aggregation: Literal['mean', 'median', 'trimmed-mean', 'krum'] = 'mean',
    aggregation_liars: int = 1,
    max_weight: float = 0.0,
    dataset: str | Callable[..., Any] | tuple[Any, ...] | Mapping[str, Any] = 'digits',
    classes: int | Literal['auto'] | None = 'auto',
    image_size: int | Literal['auto'] | None = 'auto',
    input_shape: str | None = 'auto',
    data_label_column: str | None = 'auto',
    data_input_column: str | None = 'auto',
    data_text_column: str | None = 'auto',
    max_tokens: int = 64,
    data_client_column: str | None = 'auto',
    data_class_names: str | int | float | Sequence[str] = 'auto',
    data_features: str | int | float | Sequence[str] = 'auto',
    data_drop: str | int | float | Sequence[str] = 'auto',
    data_missing: Literal['refuse', 'mean', 'median'] = 'refuse',
    data_categories: Literal['drop', 'one-hot'] = 'drop',
    data_class_map: str = '',
    data_sep: Literal['comma', 'semicolon', 'tab', 'bar'] = 'comma',
    data_decimal: Literal['point', 'comma'] = 'point',
    data_subfolders: bool = False,
    split_kind: Literal['random', 'groups', 'time', 'given'] = 'random',
    split_column: str | None = 'auto',
    split_shares: str | int | float | Sequence[str] = '8,1,1',
    split_folds: int | Literal['auto'] | None = 'auto',
    split_fold: int = 0,
    clients: int = 10,
    clients_joined: str | int | float | Sequence[str] = '',
    clients_left: str | int | float | Sequence[str] = '',
    clients_held_out: int = 0,
    held_out_rounds: int = 10,
    held_out_samples: str | int | float | Sequence[str] = 'all',
    held_out_every: int = 0,
    participation: float = 1.0,
    rounds: int = 20,
    seed: int = 0,
    partition_kind: Literal['pathological', 'dirichlet', 'iid', 'natural'] = 'pathological',
    partition_classes_per_client: int | Literal['auto'] = 2,
    partition_alpha: float = 0.3,
    partition_min_samples: int = 10,
    partition_samples_per_client: int | Literal['auto'] | None = 'auto',
    partition_share: float = 1.0,
    partition_last: int | Literal['auto'] | None = 'auto',
    models: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = 'auto',
    setting: Literal['heterogeneous', 'homogeneous'] = 'heterogeneous',
    train: str | int | float | Sequence[str] = 'all',
    lora_rank: str | int | float | Sequence[str] = '8',
    lora_alpha: float | Literal['auto'] | None = 'auto',
    lora_targets: str | int | float | Sequence[str] = 'auto',
    lora_dropout: float = 0.0,
    lora_init: str = 'peft',
    lora_head: Literal['private', 'shared'] = 'private',
    representation: str = 'features',
    anchors_ridge: float = 0.3,
    representation_norm: Literal['none', 'layer'] = 'none',
    neck: Literal['auto', 'always'] = 'auto',
    representation_width: int = 500,
    model_input: int | Literal['auto'] | None = 'auto',
    normalise: Literal['auto', 'federation', 'model'] = 'auto',
    initial_models: Literal['each', 'architecture'] = 'each',
    evaluate_initial: bool = True,
    stop_patience: int | Literal['auto'] | None = 'auto',
    stop_score: Literal['accuracy', 'balanced-accuracy', 'macro-f1', 'log-loss'] = 'accuracy',
    start_from: str | PathLike[str] = '',
    evaluate_every: int = 1,
    local_epochs: int = 1,
    batch_size: int = 64,
    optimizer: Literal['sgd', 'adamw'] = 'sgd',
    lr: float = 0.01,
    lr_schedule: Literal['constant', 'cosine'] = 'constant',
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    loss_weights: Literal['none', 'balanced'] = 'none',
    loss_class_weights: str | int | float | Sequence[str] = 'auto',
    loss_function: str = '',
    augment: bool = False,
    secagg_enabled: bool = False,
    secagg_clip: float = 1.0,
    secagg_max_samples: int = 10000,
    dp_level: Literal['user', 'record'] = 'user',
    dp_clip: float | Literal['auto'] | None = 'auto',
    dp_noise: float | Literal['auto'] | None = 'auto',
    dp_epsilon: float | Literal['auto'] | None = 'auto',
    dp_delta: float = 1e-05,
    dp_trained_down: bool = False,
    target_accuracy: float | Literal['auto'] | None = 'auto',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    precision: Literal['fp32', 'bf16'] = 'fp32',
    data_path: str | PathLike[str] = '',
    secagg_threshold: float = 0.67,
    secagg_shares: int | Literal['auto'] | None = 'auto',
    anchors_send: int = 0,
    actors: int | Literal['auto'] | None = 'auto',
    lanes: int | Literal['auto'] | None = 1,
    ray: str = '',
    output: str | PathLike[str] = '',
    resume: bool = False,
    accept_changed_code: bool = False,
    overwrite: bool = False,
    comparison_run: str = '',
    observers: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = '',
    audit_uploads: bool = False,
    verdict_score: str = 'accuracy',
    verdict_margin: float = 2.0,
    models_keep: Literal['last', 'best'] = 'last',
    scores_by_class: bool = False,
    sites: str | int | float | Sequence[str] = '',
    min_clients: int | Literal['auto'] | None = 'auto',
    min_success: float = 1.0,
    clip_norm_factor: float = 100.0,
    max_samples: int = 1000000,
    max_failed_rounds: int = 1,
    round_timeout: float = 3600.0,
    max_hours: float = 0.0,
    node_timeout: float = 300.0,
    adapter_kind: Literal['auto', 'reduced', 'decomposed'] = 'auto',
    adapter_hidden_dim: int = 60,
    adapter_init: Literal['random', 'lora'] = 'random',
    adapter_down: Literal['trained', 'fixed', 'basis', 'auto'] | None = 'auto',
    mu: float = 0.5,
    adapter_epochs: int | Literal['auto'] | None = 'auto',
    adapter_lr: float | Literal['auto'] | None = 'auto',
    fml_alpha: float = 0.5,
    fml_beta: float = 0.5,
    fedkd_energy_start: float = 0.95,
    fedkd_energy_end: float = 0.98,
    fd_lambda: float = 1.0,
    fedproto_lambda: float = 1.0,
    fedproto_weighting: Literal['count', 'equal'] = 'count',
    fedgh_server_lr: float = 0.01,
    fedgh_server_epochs: int = 1,
    fedgh_server_batch: int = 10,
    fedssa_mu: float = 0.5,
    fedssa_stable_rounds: int = 2,
    fedtgp_server_lr: float = 0.01,
    fedtgp_server_epochs: int = 100,
    fedtgp_server_batch: int = 0,
    fedtgp_lambda: float = 1.0,
    fedtgp_margin_threshold: float = 100.0,
    fedre_server_lr: float = 0.01,
    fedre_server_epochs: int = 1,
    fedre_server_batch: int = 32,
    fedorgp_server_lr: float = 0.01,
    fedorgp_server_epochs: int = 1,
    fedorgp_server_batch: int = 32,
    fedorgp_lambda: float = 1.0,
    fedorgp_server_lambda: float = 1.0,
    fedorgp_gamma: float = 1.0,
    fedmrl_representation_dim: int = 100,
    fedmrl_small_weight: float = 1.0,
    fedmrl_large_weight: float = 1.0,
    pfedes_mu: float = 0.5,
    pfedes_extractor_epochs: int | Literal['auto'] | None = 'auto',
    pfedmoe_gate_hidden_dim: int = 128,
    pfedlora_plus_mu: float = 0.3,
    adapter_predict: Literal['own', 'sum', 'auto'] | None = 'auto',
    adapter_rows: Literal['samples', 'classes'] = 'classes',
    adapter_basis: str | PathLike[str] | None = 'auto',
    adapter_alpha: float | Literal['auto'] | None = 'auto',
    fedrep_head_epochs: int = 10,
    fedprox_mu: float = 0.01,
    ditto_lambda: float = 1.0,
    ditto_epochs: int | Literal['auto'] | None = 'auto',
    flexlora_sigma: Literal['b', 'a', 'both'] = 'b',
    feddpa_alpha: float = 0.5,
    fedbabu_finetune_epochs: int = 5,
    apfl_alpha: float = 0.5,
    apfl_adapt: bool = True,
    fedala_layers: int = 1,
    fedala_rate: float = 1.0,
    fedala_share: float = 0.8,
    fedala_threshold: float = 0.1,
    fedala_most_epochs: int = 50,
    sums_changing: int | Literal['auto'] | None = 'auto',
    sums_dp_moment: float = 0.3,
    sums_dp_counts: float = 0.3,
    sums_honest: int | Literal['auto'] | None = 'auto',
    sums_dim: int | Literal['auto'] | None = 'auto',
    sums_basis: str | PathLike[str] | None = 'auto',
    sums_priors: Literal['equal', 'own', 'all'] = 'equal',
    sums_correction: Literal['none', 'ridge'] = 'none',
    sums_shrinkage: str | None = 'auto',
) -> Mapping[str, Any]: ...
