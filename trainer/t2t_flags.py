"""Flags of tensor2tensor's programs that have other names here, and what replaces them."""

from collections.abc import Iterable

PAGE = "docs/guides/from_tensor2tensor.md"
_IN_MODEL = "leave it out: the model directory has it"
_WORKERS = "--strategy=multiworker of train, and the variable TF_CONFIG"
_AVERAGE = (
    "write it to a directory first: `python -m trainer.average --steps=STEP --output_dir=...`"
)
# What replaces a flag, by program. Under "", for all others.
_REPLACEMENTS = {
    # t2t-trainer
    "problem": {
        "train": "--train_source=FILE and --train_target=FILE, or --data=NAME of TensorFlow "
        "Datasets; --train_text=FILE for a language model. --vocab_size if the text is small",
        "evaluate": "--source=FILE and --target=FILE, or --data=NAME of TensorFlow Datasets",
        "import_t2t": "--vocab=FILE, the vocabulary of the problem, and --target_space_id",
        "": _IN_MODEL,
    },
    "model": {
        "train": "leave it out: every model is a Transformer",
        "": "leave it out: every model is a Transformer. For the path of a model, see --help",
    },
    "output_dir": {
        "translate": "--saved_model=saved_models/NAME, after `python -m trainer.export`",
        "import_t2t": "--checkpoint=DIRECTORY to read, --model_dir=DIRECTORY to write",
        "": "--model_dir",
    },
    "data_dir": {
        "train": "leave it out with text files. Here, it is the folder of TensorFlow Datasets",
        "evaluate": "leave it out with text files. Here, it is the folder of TensorFlow Datasets",
        "": _IN_MODEL,
    },
    "hparams_set": {"": _IN_MODEL},
    "hparams": {"": _IN_MODEL},
    "hparams_range": {"": "run train several times, with other --hparams"},
    "tmp_dir": {"": "leave it out: text files are read directly"},
    "generate_data": {"": "leave it out: text files are read directly"},
    "t2t_usr_dir": {
        "train": "leave it out: nothing is registered. --config=FILE.json describes a model",
        "": "leave it out: nothing is registered",
    },
    "train_steps": {"": "leave it out: it is a flag of train"},
    "eval_steps": {"": "leave it out: train evaluates all of --dev_source and --dev_target"},
    "eval_throttle_seconds": {"": "--evaluate_every of train"},
    "eval_use_test_set": {"": "`python -m trainer.evaluate` with the test set"},
    "eval_run_autoregressive": {"": "--dev_bleu of train"},
    "eval_early_stopping_steps": {"": "--early_stopping=EVALUATIONS of train"},
    "eval_early_stopping_metric": {"": "--best_metric of train"},
    "eval_early_stopping_metric_delta": {"": "leave it out"},
    "eval_early_stopping_metric_minimize": {"": "leave it out"},
    "local_eval_frequency": {"": "--evaluate_every and --checkpoint_every of train"},
    "save_checkpoints_secs": {"": "--checkpoint_minutes of train"},
    "keep_checkpoint_max": {"": "--keep_checkpoints of train"},
    "keep_checkpoint_every_n_hours": {"": "--keep_best=COUNT of train, by dev BLEU"},
    "log_step_count_steps": {"": "--log_every of train"},
    "random_seed": {"": "--seed of train"},
    "warm_start_from": {"": "--init_from=MODEL_DIR of train"},
    "schedule": {"": "leave it out: train evaluates if it has a dev set"},
    "registry_help": {"": "--help"},
    "worker_gpu": {"": "leave it out: all GPUs that CUDA_VISIBLE_DEVICES shows are used"},
    "worker_gpu_memory_fraction": {"": "leave it out"},
    "gpu_order": {"": "leave it out"},
    "gpu_automatic_mixed_precision": {"": "--precision=float16 or bfloat16 of train"},
    "xla_compile": {"": "--jit_compile of train"},
    "inter_op_parallelism_threads": {"": "the variable TF_NUM_INTEROP_THREADS"},
    "intra_op_parallelism_threads": {"": "the variable TF_NUM_INTRAOP_THREADS"},
    **dict.fromkeys(
        (
            *("master", "sync", "worker_id", "worker_job", "worker_replicas"),
            *("ps_gpu", "ps_job", "ps_replicas"),
        ),
        {"": _WORKERS},
    ),
    **dict.fromkeys(
        ("use_tpu", "cloud_tpu_name", "tpu_num_shards", "iterations_per_loop"),
        {"": "leave it out: TPUs are not supported"},
    ),
    # t2t-decoder
    "decode_from_file": {"evaluate": "--source=FILE", "": "--input=FILE of translate"},
    "decode_to_file": {"evaluate": "--output=FILE", "": "--output=FILE of translate"},
    "decode_interactive": {"": "leave it out: translate without --input reads the terminal"},
    "decode_shards": {"": "leave it out: split the file, and translate the parts"},
    "decode_hparams": {
        "translate": "--beam_size, --alpha, --batch_size; return_beams: --nbest=N; "
        "write_beam_scores: --scores; extra_length: --extra_length of export",
        "evaluate": "--beam_size, --alpha, --batch_size",
        "": "--beam_size, --alpha and --extra_length of export, for the defaults of a model",
    },
    "score_file": {"": "the signature `score` of the exported model"},
    "checkpoint_path": {
        "evaluate": "--checkpoint=STEP",
        "import_t2t": "--checkpoint=PATH",
        "": _AVERAGE,
    },
    # t2t-avg-all, and avg_checkpoints.py
    "n": {"": "--last=N of average"},
    "num_last_checkpoints": {"": "--last=N of average"},
    "checkpoints": {"": "--steps=STEP,STEP of average"},
    "output_path": {"": "--output_dir of average"},
    "min_steps": {"": "leave it out: average --steps=STEP,STEP chooses checkpoints"},
    "wait_minutes": {"": "leave it out: run the program again"},
    # t2t-bleu
    "translation": {"": f"for a file that exists, {PAGE} has a line; evaluate --output writes one"},
    "translations_dir": {"": "evaluate --model_dir=RUN,RUN compares models"},
    "reference": {"": "--target=FILE of evaluate"},
    "bleu_variant": {"": "--metrics=t2t_bleu,t2t_bleu_uncased of evaluate"},
    "event_dir": {"": "leave it out: train --dev_bleu writes BLEU for TensorBoard"},
    # t2t-exporter
    "export_as_tfhub": {"": "leave it out: export writes a SavedModel"},
}


def replacements(program: str, given: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """Returns what replaces flags of tensor2tensor, by flag, in the order of the command line.

    Args:
        program: a program of this package, such as "train".
        given: names of the flags on the command line.
        own: names of the flags of the program. They are not in the result, except for those that
            have another meaning in this program.

    Returns:
        An empty dict if all flags are unknown to tensor2tensor, or flags of the program.
    """
    own, found = {*own}, {}
    for flag in dict.fromkeys(given):
        # absl's form of a boolean flag that is off.
        name = flag if flag in _REPLACEMENTS or flag in own else flag.removeprefix("no")
        texts = _REPLACEMENTS.get(name, {})
        # A flag of both has a text for the program if its meaning differs.
        text = texts.get(program) if name in own else texts.get(program, texts.get(""))
        if text is not None:
            found[flag] = text.removesuffix(f" of {program}")
    return found if {*found} - own else {}


def describe(name: str, found: dict[str, str]) -> str:
    """Returns the error of a command line with flags of tensor2tensor, a line for each of them."""
    width = max(map(len, found))
    lines = [f"  --{flag:{width}}  {text}" for flag, text in found.items()]
    return "\n".join(
        [
            f"{name}: Expected flags of {name}. Received: flags of tensor2tensor. Give instead:",
            *lines,
            f"Complete commands, old and new: {PAGE}, section Commands.",
        ]
    )
