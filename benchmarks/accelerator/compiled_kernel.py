"""Compiles the fused kernel for GPUs without one, and prints what its machine code does.

    KERAS_BACKEND=torch python -m benchmarks.accelerator.compiled_kernel

It requires PyTorch and Triton. A driver that pretends to have a GPU compiles what the operators
launch, and launches nothing. Exits with status 1 if a loop of a tail uses local memory for heads of
up to 64 features: then the kernel has too few registers.

Columns: registers of a thread, bytes of its stack, shared memory of a block, matrix instructions
in PTX, and for each loop of the machine code with matrix instructions
`instructions/matrix instructions/local loads and stores`. The loops of `forward` are the products
with a^K, then the left tail, the band and the right tail, then the products with a^V. Those of
`key_gradient` are the right tail, the band and the left tail. Those of `query_gradient` are the
left tail, the band and the right tail, then the products with a^K. Causal attention has no right
tail.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.tables import print_cells, print_header
from t2t_relpos.backend import torch_fused

ARCHITECTURES, DEPTHS = (90, 80), (64, 128)
LENGTH, HEADS, LEFT, RIGHT = 256, 2, 16, 16
TAILS = {"forward": (1, 3), "key_gradient": (0, 2), "query_gradient": (0, 2)}
CAUSAL_TAILS = {"forward": (1,), "key_gradient": (1,), "query_gradient": (0,)}


class PretendDriver:
    """The parts of Triton's driver that compilation reads."""

    class utils:
        """Stands for the functions that load machine code."""

    def __init__(self, architecture):
        self.architecture = architecture

    def get_current_target(self):
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self):
        return self.architecture  # Compiled kernels are kept by device.

    def get_current_stream(self, device):
        return 0

    def get_device_interface(self):
        return torch.cuda

    def get_active_torch_device(self):
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name):
        return name


def compile_kernels(architecture, depth, causal, dtype=torch.bfloat16):
    """Returns the compiled kernels of a forward and a backward pass by name."""
    compiled, run = {}, JITFunction.run

    def compile_only(self, *args, **kwargs):
        compiled[self.fn.__name__] = run(self, *args, **(kwargs | {"warmup": True}))

    driver.set_active(PretendDriver(architecture))
    JITFunction.run = compile_only
    try:
        x = torch.zeros(1, LENGTH, HEADS, depth, dtype=dtype).transpose(1, 2)
        table = torch.zeros(LEFT + RIGHT + 1, depth, dtype=dtype)
        arguments = (x, x, x, table, table, None, (LEFT, RIGHT, 0, causal))
        results = torch_fused.forward(*arguments)
        torch_fused.backward(*arguments, *results, x)
    finally:
        JITFunction.run = run
    return compiled


def loops(machine_code):
    """Returns (instructions, matrix instructions, local loads and stores) of innermost loops."""
    pattern = r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)([^;]*);"
    lines = [(int(at, 16), *rest) for at, *rest in re.findall(pattern, machine_code)]
    spans = []
    for at, name, operands in lines:
        target = re.search(r"0x([0-9a-f]+)", operands)
        if name.startswith("BRA") and target and int(target.group(1), 16) < at:
            spans.append((int(target.group(1), 16), at))
    found = []
    for low, high in sorted(spans):
        if any((low, high) != other and low <= other[0] <= other[1] <= high for other in spans):
            continue
        names = [name for at, name, _ in lines if low <= at <= high]
        counts = [
            sum(name.startswith(kind) for name in names)
            for kind in (("HGMMA", "HMMA"), ("LDL", "STL"))
        ]
        if counts[0]:
            found.append((len(names), *counts))
    return found


def inspect(kernel):
    """Returns (registers, bytes of stack, loops) of a compiled kernel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([tool, option, file.name], capture_output=True, text=True).stdout
            for option in ("-res-usage", "-sass")
        )
    registers, stack = (int(re.search(rf"{x}:(\d+)", usage).group(1)) for x in ("REG", "STACK"))
    return registers, stack, loops(code)


def main():
    print(f"Triton {triton.__version__}, bfloat16, distances ({LEFT}, {RIGHT})\n")
    print_header(
        ["kernel", "GPU", "features", "causal", "registers", "stack", "shared KiB", "wgmma", "mma",
         "loops"]
    )  # fmt: skip
    spilled = []
    for architecture in ARCHITECTURES:
        for depth in DEPTHS:
            for causal in (False, True):
                for name, kernel in compile_kernels(architecture, depth, causal).items():
                    if name not in TAILS:
                        continue
                    registers, stack, found = inspect(kernel)
                    ptx = kernel.asm["ptx"]
                    case = [f"sm_{architecture}", str(depth), "yes" if causal else "no"]
                    cells = [name, *case, registers, stack]
                    cells += [kernel.metadata.shared // 1024, ptx.count("wgmma.mma_async")]
                    cells += [ptx.count("mma.sync"), " ".join("/".join(map(str, x)) for x in found)]
                    print_cells([str(cell) for cell in cells])
                    tails = (CAUSAL_TAILS if causal else TAILS)[name]
                    if depth <= 64 and any(found[at][-1] for at in tails):
                        spilled.append(" ".join([name, *case]))
    if spilled:
        sys.exit(f"Local memory in a tail: {', '.join(spilled)}.")


if __name__ == "__main__":
    main()
