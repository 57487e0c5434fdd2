"""Console scripts. Each one is equivalent to `python -m trainer.NAME`."""

import functools
import runpy


def _run(name: str):
    # With --help, absl lists the flags of the module __main__.
    runpy.run_module(f"trainer.{name}", run_name="__main__", alter_sys=True)


train = functools.partial(_run, "train")
average = functools.partial(_run, "average")
evaluate = functools.partial(_run, "evaluate")
export = functools.partial(_run, "export")
export_ctranslate2 = functools.partial(_run, "export_ctranslate2")
translate = functools.partial(_run, "translate")
import_t2t = functools.partial(_run, "import_t2t")
visualize = functools.partial(_run, "visualize")
